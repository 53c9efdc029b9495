"""What likelihoods of counts share: saddle-point log factorials, safe rates, whole numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lingp.likelihoods.targets import check_values

MAX_LOG_RATE = 40.0
"""Above this log rate `exp` gives way to its quadratic continuation: float64 no longer tells
neighbouring counts apart from e^36.7 = 2^53 on, so no observed count is touched by it."""

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_SERIES_FROM = 16.0  # the first term left out is below 2e-18 there


def stirling_error(z: Tensor) -> Tensor:
    """S(z) = log Γ(z) - (z - ½) log z + z - ½ log 2π, for z > 0, to rounding of S itself.

    Loader (2000), "Fast and accurate computation of binomial probabilities": written in S, log
    probabilities of counts never subtract large log factorials from each other.
    """
    small, large = z.clamp(max=_SERIES_FROM), z.clamp(min=_SERIES_FROM)
    direct = small.lgamma() - (small - 0.5) * small.log() + small - 0.5 * math.log(2 * math.pi)
    inverse = large.reciprocal()
    series = torch.zeros_like(z)
    for coefficient in reversed(_STIRLING):
        series = coefficient + series * inverse.square()
    return torch.where(z < _SERIES_FROM, direct, inverse * series)


def log_factorial_excess(y: Tensor) -> Tensor:
    """log y! - y log y + y in float64; zero for y = 0."""
    count = y.double().clamp(min=1.0)
    excess = 0.5 * (2 * math.pi * count).log() + stirling_error(count)
    return torch.where(y == 0, 0.0, excess)


def continued_exp(x: Tensor) -> Tensor:
    """`exp` up to MAX_LOG_RATE = L, then e^L (1 + (x - L) + ½ (x - L)²): convex, finite, C²."""
    inside = x < MAX_LOG_RATE
    excess = torch.where(inside, 0.0, x - MAX_LOG_RATE)
    return x.clamp(max=MAX_LOG_RATE).exp() * (1 + excess + 0.5 * excess.square())


def continued_exp_derivative(x: Tensor) -> Tensor:
    """d/dx continued_exp(x); the second derivative is exp(min(x, L))."""
    return x.clamp(max=MAX_LOG_RATE).exp() * (1 + (x - MAX_LOG_RATE).clamp(min=0))


def limited_exp(x: Tensor) -> Tensor:
    """exp(min(x, MAX_LOG_RATE)): rates for moments and draws."""
    return x.clamp(max=MAX_LOG_RATE).exp()


def sample_poisson(rate: Tensor, generator: torch.Generator | None) -> Tensor:
    """Poisson counts, normal above 2^30, where the skewness 1/sqrt(rate) is below 3.1e-5."""
    limit = 2.0**30
    counts = torch.poisson(rate.clamp(max=limit), generator=generator)
    if not bool((rate > limit).any()):
        return counts
    normal = torch.randn(rate.shape, generator=generator, dtype=rate.dtype, device=rate.device)
    return torch.where(rate > limit, (rate + rate.sqrt() * normal).round(), counts)


def check_counts(values: Tensor, expected: str = "counts 0, 1, 2, ...") -> None:
    """Raise unless every observed value is a finite whole number that is not negative."""
    check_values(values, whole(values), expected)


def whole(values: Tensor) -> Tensor:
    """Where values are finite whole numbers >= 0."""
    return values.isfinite() & (values >= 0) & (values == values.round())
