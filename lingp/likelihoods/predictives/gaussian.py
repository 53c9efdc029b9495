"""The normal predictive of Gaussian noise of every kind."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.targets import split_missing
from lingp.linalg.psd import psd_root


@dataclass(frozen=True)
class GaussianPredictive(Predictive):
    """y_n ~ N(mean_n, covariance_n + diag(noise_n)).

    Attributes
    ----------
    location
        Mean of f, (N x C).
    covariance
        Covariance of the outputs of f at each datum, (N x C x C).
    noise
        Noise variance, (N x C) or broadcastable to it.
    """

    location: Tensor
    covariance: Tensor
    noise: Tensor

    @property
    def mean(self) -> Tensor:
        return self.location

    @property
    def epistemic_variance(self) -> Tensor:
        # rounding can take a vanishing variance below zero
        return self.covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0)

    @property
    def aleatoric_variance(self) -> Tensor:
        return self.noise.expand_as(self.location)

    def noise_covariance(self) -> Tensor:
        """Of y given f, (N x C x C) or broadcastable to it."""
        return torch.diag_embed(self.noise.expand_as(self.location))

    def log_prob(self, y: Tensor) -> Tensor:
        return marginal_log_prob(y - self.location, self.covariance, self.noise_covariance())

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        quantile = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)).item()
        half = quantile * self.variance.sqrt()
        return self.location - half, self.location + half

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        normal = torch.randn(
            (num_samples, *self.location.shape),
            generator=generator,
            dtype=self.location.dtype,
            device=self.location.device,
        )
        scale = total_factor(self.covariance, self.noise_covariance())
        return self.location + (scale @ normal.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class CorrelatedGaussianPredictive(GaussianPredictive):
    """y_n ~ N(mean_n, covariance_n + noise).

    Attributes
    ----------
    location
        Mean of f, (N x C).
    covariance
        Covariance of the outputs of f at each datum, (N x C x C).
    noise
        Noise covariance, (C x C).
    """

    @property
    def aleatoric_variance(self) -> Tensor:
        return self.noise.diagonal().expand_as(self.location)

    def noise_covariance(self) -> Tensor:
        return self.noise


@dataclass(frozen=True)
class KnownNoisePredictive(GaussianPredictive):
    """y_n ~ N(mean_n, covariance_n + diag(noise_n)), with a known part of the noise.

    `log_prob` takes targets (N x C x 2), values and their own known noise variances, and uses
    those instead of `noise`.

    Attributes
    ----------
    location
        Mean of f, (N x C).
    covariance
        Covariance of the outputs of f at each datum, (N x C x C).
    noise
        Noise variance at the rows to predict, (N x C) or broadcastable to it.
    shared
        The part of the noise variance that all data share, 0-d or (C,).
    """

    shared: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        values, known = y.unbind(-1)
        noise = torch.diag_embed((self.shared + known).expand_as(self.location))
        return marginal_log_prob(values - self.location, self.covariance, noise)


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
