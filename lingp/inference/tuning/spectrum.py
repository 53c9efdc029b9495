"""The evidence as a function of scales: prior variance and noise, from one eigendecomposition.

With the eigenvalues λ of Φ Φᵀ at some hyperparameters, the prior variance s times as large and the
curvature t times (noise 1/t times as large), the evidence is a sum over eigenvalues,

    network mean  log p(y | f*) - ½ [ |Σ0^{-1/2} (θ* - μ0)|²/s + Σ_i log(1 + st λ_i) ]
    refit mean    log p(y | f = y) - ½ [ t (Σ_i u_i²/(1 + st λ_i) + rest) + Σ_i log(1 + st λ_i) ]

with u = Uᵀ z of the whitened residual z at the prior's mean, and `rest` the part of its square
outside the range of Φ. Any number of values of s and t then costs nothing. Φᵀ Φ has the same
eigenvalues and serves when P < N·K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.tuning.scaled_spectrum import (
    ScaledSpectrum,
    common_noise,
    spectrum_resolved,
    squared_jacobian,
    works_in_a_space,
)

Parts = tuple[Tensor, Tensor]
"""Two parts of the evidence: log p(y | f) - ½ |e|² at the mean, and log det(I + Φ Φᵀ)."""

PartsAt = Callable[[Tensor, Tensor], Parts]
"""The parts at scales (s, t)."""


@dataclass(frozen=True)
class CommonScales:
    """The current hyperparameters as scales of those they had when this was made.

    Attributes
    ----------
    laplace
        An isotropic prior, or one that stays; noise common to all data, or a likelihood that stays.
    variance, noise
        Prior variance and noise at scale 1; None where the scale is always 1.
    """

    laplace: LinearizedLaplace
    variance: Tensor | None
    noise: Tensor | None

    @classmethod
    @torch.no_grad()
    def of(cls, laplace: LinearizedLaplace) -> CommonScales:
        """With the current hyperparameters as scale 1."""
        variance = laplace.prior.variances()[0] if laplace.prior.isotropic else None
        return cls(laplace, variance, common_noise(laplace))

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Scales s of the prior's variances and t of the curvature, 0-d, with a graph."""
        like = self.laplace.training.outputs
        s, t = like.new_ones(()), like.new_ones(())
        if self.variance is not None:
            s = (self.laplace.prior.variances()[0] / self.variance).to(like)
        noise = common_noise(self.laplace)
        if self.noise is not None and noise is not None:
            t = (self.noise / noise).to(like)
        return s, t


def only_scales(laplace: LinearizedLaplace) -> bool:
    """Whether all that is free is an isotropic precision and one noise variance.

    The curvature then changes by a factor only, if it doesn't move with the posterior's mean.
    """
    scales = list(laplace.prior.parameters()) if laplace.prior.isotropic else []
    if common_noise(laplace) is not None:
        scales.append(laplace.likelihood.raw_noise)
    known = {id(p) for p in scales}
    free = [p for m in (laplace.prior, laplace.likelihood) for p in m.parameters()]
    return all(id(p) in known for p in free if p.requires_grad)


def has_spectral_evidence(laplace: LinearizedLaplace) -> bool:
    """Whether prior and likelihood have the form that one eigendecomposition serves."""
    fixed_curvature = laplace.mean == "network" or laplace.data_term.is_quadratic
    return works_in_a_space(laplace) and fixed_curvature and only_scales(laplace)


@dataclass(frozen=True)
class SpectralEvidence:
    """The evidence at all scales; call it for the evidence at the current hyperparameters.

    Attributes
    ----------
    scales
        Of the current hyperparameters.
    eigenvalues
        Of Φ Φᵀ or Φᵀ Φ at scale 1, (k,).
    parts_at
        The evidence as a function of scales.
    """

    scales: CommonScales
    eigenvalues: Tensor
    parts_at: PartsAt

    def parts(self) -> Parts:
        """At the current hyperparameters, with a graph."""
        return self.parts_at(*self.scales())

    def __call__(self) -> Tensor:
        fit, log_determinant = self.parts()
        return fit - 0.5 * log_determinant

    @torch.no_grad()
    def resolved(self, tolerance: float = 0.0) -> bool:
        """Whether rounding of the eigenvalues leaves the current evidence intact.

        Or wrong by less than `tolerance` nats.
        """
        s, t = self.scales()
        return spectrum_resolved(self.eigenvalues, float(s * t), tolerance)


@torch.no_grad()
def spectral_evidence(laplace: LinearizedLaplace) -> SpectralEvidence:
    """One eigendecomposition at the current hyperparameters; see `has_spectral_evidence`."""
    if laplace.mean == "network":
        values, parts = _network_parts(laplace)
    else:
        values, parts = _refit_parts(laplace)
    return SpectralEvidence(CommonScales.of(laplace), values, parts)


def _network_parts(laplace: LinearizedLaplace) -> tuple[Tensor, PartsAt]:
    training = laplace.training
    values = torch.linalg.eigvalsh(squared_jacobian(laplace)).clamp(min=0)
    variances = training.per_weight(laplace.prior.variances().to(training.outputs))
    penalty = (laplace.prior_deviation().square() / variances).sum()

    def parts(s: Tensor, t: Tensor) -> Parts:
        log_likelihood = laplace.data_term.log_prob(training.outputs)
        return log_likelihood - 0.5 * penalty / s, (s * t * values).log1p().sum()

    return values, parts


def _refit_parts(laplace: LinearizedLaplace) -> tuple[Tensor, PartsAt]:
    data, outputs = laplace.data_term, laplace.prior_outputs()
    spectrum = ScaledSpectrum.of(laplace)
    values = spectrum.eigenvalues
    z = data.whitened_residual(outputs)
    square = laplace.training.shards.sum(z.square().sum())
    if spectrum.in_weight_space:
        # below rounding, an eigenvalue and its share of the residual are both noise
        tiny = len(values) * torch.finfo(values.dtype).eps * values.max()
        projected = spectrum.coordinates(z).square()
        misfit = torch.where(values > tiny, projected / values.clamp(min=tiny), 0.0)
        rest = (square - misfit.sum()).clamp(min=0)
    else:
        misfit = (spectrum.vectors.mT @ z.reshape(-1)).square()
        rest = torch.zeros_like(square)
    normalizer = data.log_prob(outputs) + 0.5 * square  # log p(y | f = y)
    num_observed = data.num_observed

    def parts(s: Tensor, t: Tensor) -> Parts:
        scaled = s * t * values
        square = t * ((misfit / (1 + scaled)).sum() + rest)
        return normalizer + 0.5 * (num_observed * t.log() - square), scaled.log1p().sum()

    return values, parts
