"""The predictive of targets that each depend on one latent output: one-dimensional quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lingp.likelihoods.predictives.base import PredictiveOfMoments
from lingp.likelihoods.predictives.conditional import ElementwiseConditional
from lingp.likelihoods.predictives.draws import draw_latents
from lingp.likelihoods.predictives.importance import log_evidence, product_or_joint
from lingp.likelihoods.predictives.mass import first_panels
from lingp.likelihoods.predictives.quadrature import (
    NUM_NODES,
    adapt,
    log_integral,
    row_chunks,
)
from lingp.likelihoods.predictives.quantiles import (
    count_quantile,
    interval_from_draws,
    real_quantile,
)

_LOG_NORMAL = 0.5 * math.log(2 * math.pi)
_PANELS = 12  # about as many as a row ends up with


@dataclass(frozen=True)
class ElementwisePredictive(PredictiveOfMoments):
    """p(y_n) = ∫ Π_c p(y_nc | f_c) N(f | m_n, S_n) df.

    Moments, intervals and the log density of one target are quadratures over one variable. The
    joint log density of several targets factorises where S_n is diagonal; otherwise it is
    quasi-Monte-Carlo with the joint covariance.

    Attributes
    ----------
    likelihood
        Gives p(y | f) for each target.
    location
        m, (N x C).
    covariance
        S, (N x C x C), of any rank.
    known
        The known quantity of each target, (N x C), where the likelihood has one.
    """

    likelihood: ElementwiseConditional
    location: Tensor
    covariance: Tensor
    known: Tensor | None = None

    @cached_property
    def _variance(self) -> Tensor:
        """Variance of each latent output, (N x C); its root must have a derivative."""
        smallest = torch.finfo(self.location.dtype).tiny
        return self.covariance.diagonal(dim1=-2, dim2=-1).clamp(min=smallest)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """E y, Var E[y | f] and E Var[y | f], (N x M)."""
        exact = self.likelihood.exact_moments(self.location, self._variance, self.known)
        if exact is not None:
            return exact
        parts = [
            self._moments_of(rows)
            for rows in row_chunks(len(self.location), NUM_NODES * _PANELS * self._width)
        ]
        mean, epistemic, aleatoric = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, epistemic, aleatoric

    @cached_property
    def _width(self) -> int:
        """M, the number of moments of a datum."""
        known = None if self.known is None else self.known[:1]
        return self.likelihood.conditional_mean(self.location[:1], known).shape[-1]

    def _rows(self, rows: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        known = None if self.known is None else self.known[rows]
        return self.location[rows], self._variance[rows].sqrt(), known

    def _moments_of(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        mean, scale, known = self._rows(rows)
        likelihood = self.likelihood
        centre = likelihood.conditional_mean(mean, known).detach()  # (n, M)

        def terms(z: Tensor, index: Tensor) -> Tensor:
            f = mean[index] + scale[index] * z
            beside = None if known is None else known[index]
            off = likelihood.conditional_mean(f, beside) - centre[index]
            inner = likelihood.conditional_variance(f, beside)
            density = (-0.5 * z.square() - _LOG_NORMAL).exp()
            return torch.stack([off, off.square(), inner]) * density

        panels = adapt(terms, _prior_panels(mean[:, :1]))
        z = panels.nodes()
        off, squared, inner = (panels.sum(part, len(mean)) for part in terms(z, panels.rows))
        return centre + off, (squared - off.square()).clamp(min=0), inner

    def expectation(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """E h(f_c) of an elementwise function h of the latent outputs, (N x C)."""
        parts = []
        for rows in row_chunks(len(self.location), NUM_NODES * _PANELS * self.location.shape[-1]):
            mean, scale, _ = self._rows(rows)
            parts.append(_expectation_of(function, mean, scale))
        return torch.cat(parts)

    @property
    def probs(self) -> Tensor:
        num_labels = self.likelihood.num_labels(tuple(self.location.shape[1:]))
        if num_labels is None:
            return super().probs
        mean = self.mean
        return mean if mean.shape[-1] == num_labels else torch.cat([1 - mean, mean], -1)

    def log_prob_each(self, y: Tensor) -> Tensor:
        """log p(y_nc) of each target on its own, (N x C); zero where it is missing."""
        values, beside, observed = self.likelihood.split_known(y)
        parts = []
        for rows in row_chunks(len(y), NUM_NODES * _PANELS * self.location.shape[-1]):
            mean, scale, _ = self._rows(rows)
            known = None if beside is None else beside[rows]
            parts.append(self._log_prob_of(values[rows], mean, scale, known))
        return torch.where(observed, torch.cat(parts), 0.0)

    def _log_prob_of(self, y: Tensor, mean: Tensor, scale: Tensor, known: Tensor | None) -> Tensor:
        def log_integrand(z: Tensor, index: Tensor) -> Tensor:
            f = mean[index] + scale[index] * z
            beside = None if known is None else known[index]
            return self.likelihood.log_prob_each(y[index], f, beside) - 0.5 * z.square()

        breakpoints, peak = first_panels(self.likelihood, y, mean, scale, known)
        return log_integral(log_integrand, breakpoints, peak) - _LOG_NORMAL

    def log_prob(self, y: Tensor) -> Tensor:
        coupling = self.covariance - torch.diag_embed(self.covariance.diagonal(dim1=-2, dim2=-1))
        observed = self.likelihood.split_known(y)[2]

        def joint(rows: Tensor) -> Tensor:
            mean, covariance = self.location[rows], self.covariance[rows]
            return log_evidence(self.likelihood, y[rows], mean, covariance)

        return product_or_joint(self.log_prob_each(y), observed, coupling, joint)

    @torch.no_grad()
    def cdf(self, y: Tensor) -> Tensor:
        """P(y_nc <= y) to about 1e-7, (N x C), for likelihoods that have `cdf_each`."""
        parts = []
        for rows in row_chunks(len(y), NUM_NODES * _PANELS * self.location.shape[-1]):
            mean, scale, known = self._rows(rows)
            parts.append(self._cdf_of(y[rows], mean, scale, known))
        return torch.cat(parts)

    def _cdf_of(self, y: Tensor, mean: Tensor, scale: Tensor, known: Tensor | None) -> Tensor:
        def integrand(z: Tensor, index: Tensor) -> Tensor:
            f = mean[index] + scale[index] * z
            beside = None if known is None else known[index]
            density = (-0.5 * z.square() - _LOG_NORMAL).exp()
            return self.likelihood.cdf_each(y[index], f, beside) * density

        panels = adapt(integrand, _prior_panels(mean), 1e-8)
        return panels.sum(integrand(panels.nodes(), panels.rows), len(mean))

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        support, tails = self.likelihood.cdf_support, ((1 - level) / 2, (1 + level) / 2)
        if support is None:
            return interval_from_draws(self, level)
        if support == "counts":
            lower, upper = (count_quantile(self.cdf, p, self.location) for p in tails)
        else:
            spread = (self._variance + self.likelihood.conditional_variance(self.location)).sqrt()
            scale = torch.where(spread.isfinite(), spread, 1.0)
            lower, upper = (real_quantile(self.cdf, p, self.location, scale) for p in tails)
        return lower, upper

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        f = draw_latents(self.location, self.covariance, num_samples, generator)
        return self.likelihood.sample(f, self.known, generator=generator)


def _expectation_of(function: Callable[[Tensor], Tensor], mean: Tensor, scale: Tensor) -> Tensor:
    def integrand(z: Tensor, index: Tensor) -> Tensor:
        density = (-0.5 * z.square() - _LOG_NORMAL).exp()
        return function(mean[index] + scale[index] * z) * density

    panels = adapt(integrand, _prior_panels(mean))
    return panels.sum(integrand(panels.nodes(), panels.rows), len(mean))


def _prior_panels(like: Tensor) -> Tensor:
    """Breakpoints over all of a standard normal, (B + 1 x N x C)."""
    z = torch.linspace(-10, 10, 7, dtype=like.dtype, device=like.device)
    return z[:, None, None].expand(-1, *like.shape)
