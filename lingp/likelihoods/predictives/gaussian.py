"""The normal predictive of Gaussian noise of every kind."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import Self

from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.predictives.draws import normal_like
from lingp.likelihoods.targets import split_missing
from lingp.linalg.psd import psd_root


@dataclass(frozen=True)
class GaussianPredictive(Predictive):
    """y_n ~ N(location_n, covariance_n + noise_n).

    Attributes
    ----------
    location
        Mean of f, (N x C).
    covariance
        Covariance of the outputs of f at each datum, (N x C x C).
    noise
        Covariance of the noise, (N x C x C) or (C x C).
    shared
        The variance of the noise beside the known one, 0-d or (C,), where targets are pairs
        (N x C x 2) of a value and its known noise variance.
    """

    location: Tensor
    covariance: Tensor
    noise: Tensor
    shared: Tensor | None = None

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        # rounding can take a vanishing variance below zero
        epistemic = self.covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0)
        aleatoric = self.noise.diagonal(dim1=-2, dim2=-1).expand_as(self.location)
        return self.location, epistemic, aleatoric

    def beside(self, y: Tensor) -> tuple[Self, Tensor]:
        if self.shared is None:
            return self, y
        values, known = y.unbind(-1)
        known = torch.where(values.isnan(), 0.0, known)
        return replace(self, noise=torch.diag_embed(self.shared + known)), values

    def log_prob(self, y: Tensor) -> Tensor:
        here, values = self.beside(y)
        return marginal_log_prob(values - self.location, self.covariance, here.noise)

    @property
    def cdf_support(self) -> Literal["reals"]:
        return "reals"

    def cdf(self, y: Tensor) -> Tensor:
        return torch.special.ndtr((y - self.location) / self.variance.sqrt())

    def quantiles(self, *probabilities: float) -> tuple[Tensor, ...]:
        levels = torch.special.ndtri(torch.tensor(probabilities, dtype=torch.float64)).tolist()
        return tuple(self.location + level * self.variance.sqrt() for level in levels)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        normal = normal_like(self.location, generator, num_samples)
        scale = total_factor(self.covariance, self.noise)
        return self.location + (scale @ normal.unsqueeze(-1)).squeeze(-1)


def marginal_log_prob(residual: Tensor, covariance: Tensor, noise: Tensor) -> Tensor:
    """log N(residual; 0, covariance + noise) of each datum's observed targets, (N,).

    Parameters
    ----------
    residual
        (N x C), NaN where a target is missing.
    covariance
        (N x C x C).
    noise
        (N x C x C) or broadcastable to it, positive definite.
    """
    residual, observed = split_missing(residual)
    both = observed.unsqueeze(-1) & observed.unsqueeze(-2)
    # in place of missing targets, independent unit noise: log det 0, whitened residual 0
    unit = torch.eye(residual.shape[-1], dtype=residual.dtype, device=residual.device)
    scale = total_factor(torch.where(both, covariance, 0.0), torch.where(both, noise, unit))
    white = torch.linalg.solve_triangular(scale, residual.unsqueeze(-1), upper=False).squeeze(-1)
    log_det = scale.diagonal(dim1=-2, dim2=-1).log()  # of the root: half of it
    terms = 0.5 * (white.square() + math.log(2 * math.pi)) + log_det
    return -(observed * terms).sum(-1)


def total_factor(covariance: Tensor, noise: Tensor) -> Tensor:
    """Lower triangular L with L Lᵀ = covariance + noise, for all data, (N x C x C).

    Where rounding leaves the sum indefinite, or there is no noise and it is singular, L is the
    triangle of the two roots beside each other, [A B] with A Aᵀ = covariance and B Bᵀ = noise.
    """
    total = covariance + noise
    factor, info = torch.linalg.cholesky_ex(total)
    failed = info > 0
    if not bool(failed.any()):
        return factor
    noise = noise.expand_as(total)
    both = torch.cat([_root(covariance[failed]), _root(noise[failed])], -1)
    upper = torch.linalg.qr(both.mT).R
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    return factor.index_put((failed,), (sign.unsqueeze(-1) * upper).mT)


def _root(matrix: Tensor) -> Tensor:
    """A with A Aᵀ = matrix, in units in which no output drowns another."""
    variances = matrix.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(variances > 0, variances, 1.0).sqrt().unsqueeze(-1)
    return scale * psd_root(matrix / scale / scale.mT)
