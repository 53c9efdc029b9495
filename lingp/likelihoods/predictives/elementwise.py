"""The predictive of targets that each depend on one latent output: one-dimensional quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
    NUM_NODES,
    adapt,
    log_integral,
    row_chunks,
)

_LOG_NORMAL = 0.5 * math.log(2 * math.pi)
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
            inner = here.conditional_variance(f)
            density = (-0.5 * z.square() - _LOG_NORMAL).exp()
            return torch.stack([off, off.square(), inner]) * density

        panels = adapt(terms, _prior_panels(mean[:, :1]))
        z = panels.nodes()
        off, squared, inner = (panels.sum(part, len(mean)) for part in terms(z, panels.rows))
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
    return log_integral(log_integrand, breakpoints, peak) - _LOG_NORMAL


def _cdf_of(likelihood: ElementwiseConditional, y: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    def below(f: Tensor, index: Tensor) -> Tensor:
        return likelihood.rows(index).cdf_each(y[index], f)

    return _normal_mean(below, mean, scale, 1e-8)


def _normal_mean(
    function: Callable[[Tensor, Tensor], Tensor],
    mean: Tensor,
    scale: Tensor,
    tolerance: float | None = None,
) -> Tensor:
    """E h(f_c, row) under f_c ~ N(mean_c, scale_c²), (N x C)."""

    def integrand(z: Tensor, index: Tensor) -> Tensor:
        density = (-0.5 * z.square() - _LOG_NORMAL).exp()
        return function(mean[index] + scale[index] * z, index) * density

    panels = adapt(integrand, _prior_panels(mean), tolerance)
    return panels.sum(integrand(panels.nodes(), panels.rows), len(mean))


def _prior_panels(like: Tensor) -> Tensor:
    """Breakpoints over all of a standard normal, (B + 1 x N x C)."""
    z = torch.linspace(-10, 10, 7, dtype=like.dtype, device=like.device)
    return z[:, None, None].expand(-1, *like.shape)
