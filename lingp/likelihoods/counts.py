"""What likelihoods of counts share: saddle-point log factorials, safe rates, checks of targets."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lingp.likelihoods.targets import check_values, flatten_targets, with_rows

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


def flatten_pairs(
    y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype, pair: str
) -> Tensor:
    """Targets with their known quantity along a last axis of two, as (N x C x 2).

    Parameters
    ----------
    y
        Targets, first axis the data; an output axis of one may be left out.
    output_shape
        Shape of the network's output for one datum.
    dtype
        Of the result.
    pair
        What the two are, for errors.
    """
    expected = (*output_shape, 2)
    given = tuple(y.shape[1:])
    if given != expected and {given, expected} != {(2,), (1, 2)}:
        raise ValueError(
            f"y: has shape {with_rows(given)}, but this likelihood takes {pair} along a last axis "
            f"of two, {with_rows(expected)}; stack them: torch.stack([first, second], -1)"
        )
    flat = flatten_targets(y.reshape(-1, *expected), expected, dtype, allow_missing=True)
    values, known = flat.reshape(y.shape[0], -1, 2).unbind(-1)
    # what stands beside a missing value is never used
    return torch.stack([values, torch.where(values.isnan(), torch.nan, known)], -1)


def check_counts(values: Tensor, expected: str = "counts 0, 1, 2, ...") -> None:
    """Raise unless every observed value is a finite whole number that is not negative."""
    check_values(values, whole(values), expected)


def whole(values: Tensor) -> Tensor:
    """Where values are finite whole numbers >= 0."""
    return values.isfinite() & (values >= 0) & (values == values.round())


def check_known(pairs: Tensor, valid: Tensor, expected: str) -> None:
    """Raise unless the known quantity beside every observed value is valid.

    Parameters
    ----------
    pairs
        (N x C x 2).
    valid
        Where the known quantity is, (N x C); False where it is NaN.
    expected
        What it should be.
    """
    values, known = pairs.unbind(-1)
    bad = ~(valid | values.isnan())
    if bool(bad.any()):
        row = int(bad.any(-1).nonzero()[0])
        raise ValueError(
            f"y[..., 1]: expected {expected}, got {known[row][bad[row]][0].item():g} in row {row} "
            f"({int(bad.sum())} such values)"
        )


def check_known_values(known: Tensor, valid: Tensor, expected: str) -> None:
    """Raise unless every known quantity of a target to predict is valid."""
    if not bool(valid.all()):
        raise ValueError(
            f"known: expected {expected}, got {known[~valid][0].item():g} "
            f"({int((~valid).sum())} such values)"
        )
