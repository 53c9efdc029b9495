"""Quantiles of predictive distributions, from distribution functions or from draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_MAX_DOUBLINGS = 1100
_MAX_STEPS = 100


def quantiles_of_draws(draws: Tensor, probabilities: Sequence[float]) -> tuple[Tensor, ...]:
    """Order statistics of draws (S x N x T): of whole numbers they are whole numbers."""
    ordered, size = draws.sort(0).values, len(draws)
    ranks = [math.ceil(p * size - 1e-8) for p in probabilities]
    return tuple(ordered[max(0, rank - 1)] for rank in ranks)


def count_quantile(cdf: Callable[[Tensor], Tensor], probability: float, like: Tensor) -> Tensor:
    """The smallest of 0, 1, 2, ... with cdf >= probability, elementwise.

    Parameters
    ----------
    cdf
        P(y <= .) of each element, in and out of `like`'s shape.
    probability
        Of the lower tail.
    like
        Gives shape, dtype and device.
    """
    below, above = torch.full_like(like, -1.0), torch.zeros_like(like)
    for _ in range(_MAX_DOUBLINGS):
        short = cdf(above) < probability
        if not bool(short.any()):
            break
        below = torch.where(short, above, below)
        above = torch.where(short, 2 * above + 1, above)
    while True:
        middle = ((below + above) / 2).floor()
        # past 2^53 neighbouring floats are more than one apart
        open_ = (middle > below) & (middle < above)
        if not bool(open_.any()):
            return above
        enough = cdf(middle) >= probability
        above = torch.where(open_ & enough, middle, above)
        below = torch.where(open_ & ~enough, middle, below)


def real_quantile(
    cdf: Callable[[Tensor], Tensor], probability: float, centre: Tensor, scale: Tensor
) -> Tensor:
    """The y with cdf(y) = probability of a continuous distribution, elementwise.

    The Illinois form of regula falsi on Φ⁻¹(cdf(y)) - Φ⁻¹(probability), which is a straight line
    for a normal distribution.

    Parameters
    ----------
    cdf
        P(y <= .) of each element.
    probability
        Of the lower tail.
    centre, scale
        Rough location and width to start from.
    """
    eps = torch.finfo(centre.dtype).eps
    target = torch.special.ndtri(torch.full_like(centre, probability))

    def error(y: Tensor) -> Tensor:
        return torch.special.ndtri(cdf(y).clamp(eps, 1 - eps)) - target

    low, high = centre - scale, centre + scale
    at_low, at_high = error(low), error(high)
    step = scale
    for _ in range(_MAX_DOUBLINGS):
        short, long = at_high < 0, at_low > 0
        if not bool((short | long).any()):
            break
        step = 2 * step
        low, high = torch.where(long, low - step, low), torch.where(short, high + step, high)
        at_low, at_high = error(low), error(high)
    last = torch.zeros_like(centre)
    for _ in range(_MAX_STEPS):
        span = at_high - at_low
        share = torch.where(span > 0, -at_low / span, 0.5).clamp(0, 1)
        middle = low + share * (high - low)
        value = error(middle)
        up = value < 0
        # an end that stays twice loses half its weight
        at_high = torch.where(up, torch.where(last > 0, at_high / 2, at_high), value)
        at_low = torch.where(up, value, torch.where(last < 0, at_low / 2, at_low))
        low, high = torch.where(up, middle, low), torch.where(up, high, middle)
        last = torch.where(up, 1.0, -1.0).to(value)
        if bool(((value.abs() < 1e-8) | (high - low <= 4 * eps * middle.abs())).all()):
            break
    return middle
