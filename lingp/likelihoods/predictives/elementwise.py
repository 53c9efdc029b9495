"""The predictive of targets that each depend on one latent output: one-dimensional quadrature."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from lingp.likelihoods.conditional import ElementwiseConditional
from lingp.likelihoods.predictives.draws import LatentPredictive
from lingp.likelihoods.predictives.importance import log_evidence, product_or_joint
from lingp.likelihoods.predictives.mass import first_panels
from lingp.likelihoods.predictives.quadrature import (
    LOG_NORMAL,
    NUM_NODES,
    log_integral,
    normal_mean,
    normal_panels,
    row_chunks,
)

_PANELS = 12  # about as many as a row ends up with


@dataclass(frozen=True)
class ElementwisePredictive(LatentPredictive):
    """p(y_n) = ∫ Π_c p(y_nc | f_c) N(f | m_n, S_n) df.

    Moments, intervals and the log density of one target are quadratures over one variable. The
    joint log density of several targets factorises where S_n is diagonal; otherwise it is
    quasi-Monte-Carlo with the joint covariance.

    Attributes
    ----------
    likelihood
        Gives p(y | f) for each target.
    """

    likelihood: ElementwiseConditional

    @cached_property
    def _variance(self) -> Tensor:
        """Variance of each latent output, (N x C); its root must have a derivative."""
        smallest = torch.finfo(self.location.dtype).tiny
        return self.covariance.diagonal(dim1=-2, dim2=-1).clamp(min=smallest)

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        exact = self.likelihood.exact_moments(self.location, self._variance)
        if exact is not None:
            return exact
        num_moments = self.likelihood.rows(slice(1)).conditional_mean(self.location[:1]).shape[-1]
        parts = [self._moments_of(rows) for rows in self._chunks(num_moments)]
        mean, epistemic, aleatoric = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, epistemic, aleatoric

    def _chunks(self, width: int | None = None) -> Iterator[slice]:
        """Slices of the rows, few enough for quadrature of `width` functions of each."""
        scalars = NUM_NODES * _PANELS * (width or self.location.shape[-1])
        return row_chunks(len(self.location), scalars)

    def _rows(self, rows: slice) -> tuple[ElementwiseConditional, Tensor, Tensor]:
        """The likelihood, mean and standard deviation of some rows."""
        return self.likelihood.rows(rows), self.location[rows], self._variance[rows].sqrt()

    def _moments_of(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        likelihood, mean, scale = self._rows(rows)
        centre = likelihood.conditional_mean(mean).detach()  # (n, M)

        def terms(z: Tensor, index: Tensor) -> Tensor:
            f, here = mean[index] + scale[index] * z, likelihood.rows(index)
            off = here.conditional_mean(f) - centre[index]
            return torch.stack([off, off.square(), here.conditional_variance(f)])

        off, squared, inner = normal_mean(terms, normal_panels(mean[:, :1]))
        return centre + off, (squared - off.square()).clamp(min=0), inner

    def log_prob_each(self, y: Tensor) -> Tensor:
        """log p(y_nc) of each target on its own, (N x C); zero where it is missing."""
        likelihood, values, observed = self.likelihood.split_known(y)
        parts = []
        for rows in self._chunks():
            _, mean, scale = self._rows(rows)
            parts.append(_log_prob_of(likelihood.rows(rows), values[rows], mean, scale))
        return torch.where(observed, torch.cat(parts), 0.0)

    def log_prob(self, y: Tensor) -> Tensor:
        coupling = self.covariance - torch.diag_embed(self.covariance.diagonal(dim1=-2, dim2=-1))
        observed = self.likelihood.split_known(y)[2]

        def joint(rows: Tensor) -> Tensor:
            mean, covariance = self.location[rows], self.covariance[rows]
            return log_evidence(self.likelihood, y[rows], mean, covariance)

        return product_or_joint(self.log_prob_each(y), observed, coupling, joint)

    @property
    def cdf_support(self) -> Literal["counts", "reals"] | None:
        return self.likelihood.cdf_support

    @torch.no_grad()
    def cdf(self, y: Tensor) -> Tensor:
        parts = []
        for rows in self._chunks():
            likelihood, mean, scale = self._rows(rows)
            parts.append(_cdf_of(likelihood, y[rows], mean, scale))
        return torch.cat(parts)

    def _around(self) -> tuple[Tensor, Tensor]:
        if self.cdf_support == "counts":
            return self.location, self.location
        spread = (self._variance + self.likelihood.conditional_variance(self.location)).sqrt()
        return self.location, torch.where(spread.isfinite(), spread, 1.0)


def _log_prob_of(
    likelihood: ElementwiseConditional, y: Tensor, mean: Tensor, scale: Tensor
) -> Tensor:
    def log_integrand(z: Tensor, index: Tensor) -> Tensor:
        f = mean[index] + scale[index] * z
        return likelihood.rows(index).log_prob_each(y[index], f) - 0.5 * z.square()

    breakpoints, peak = first_panels(likelihood, y, mean, scale)
    return log_integral(log_integrand, breakpoints, peak) - LOG_NORMAL


def _cdf_of(likelihood: ElementwiseConditional, y: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    def below(z: Tensor, index: Tensor) -> Tensor:
        return likelihood.rows(index).cdf_each(y[index], mean[index] + scale[index] * z)

    return normal_mean(below, normal_panels(mean), 1e-8)
