"""Search for the factors by which hyperparameters are multiplied.

The search is a grid of decades (half decades for one factor) around the current values and then
L-BFGS in logarithms from the best of it, with derivatives by central differences: all values it
needs at a time come from one pass over the validation rows. One factor whose every value takes a
factorisation is searched by decades, uphill from the current value, and then between them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.optimize

_DIFFERENCE = 1e-3  # of logarithms, for central differences

Scales = tuple[float, ...]
"""Logarithms of the factors searched over."""


@dataclass(frozen=True)
class Found:
    """Where a search ended.

    Attributes
    ----------
    best
        Logarithms of the best factors.
    value, initial_value
        The objective there, and where nothing is changed.
    at_boundary
        Whether the best factors lie at the edge of what was searched.
    num_evaluations
        Factors tried.
    """

    best: Scales
    value: float
    initial_value: float
    at_boundary: bool
    num_evaluations: int


def search_grid(
    density: Callable[[list[Scales]], list[float]],
    num_factors: int,
    limit: float,
    max_evaluations: int,
    step: Callable[[], object],
) -> Found:
    """The best of a grid, then of an ascent from there by central differences."""
    size = math.log(10) / (2 if num_factors == 1 else 1)
    number = math.floor(limit / size + 1e-9)
    axis = [i * size for i in range(-number, number + 1)]
    values: dict[Scales, float] = {}

    def evaluate(points: list[Scales]) -> list[float]:
        new = [p for p in points if p not in values]
        values.update(zip(new, density(new), strict=True))
        step()
        return [values[p] for p in points]

    def best() -> Scales:
        # where values tie, the least change
        inside = [p for p in values if max(map(abs, p)) <= limit]
        return max(inside, key=lambda p: (values[p], -sum(x * x for x in p)))

    def ascend(x: np.ndarray) -> tuple[float, np.ndarray]:
        center = tuple(x.tolist())
        value, *around = evaluate([center, *_neighbours(center, _DIFFERENCE)])
        if not all(map(math.isfinite, (value, *around))):
            return 1e10 + 1e3 * abs(values[start]), np.zeros_like(x)  # turn back from here
        ends = np.array(around).reshape(-1, 2)
        return -value, (ends[:, 0] - ends[:, 1]) / (2 * _DIFFERENCE)

    evaluate(list(itertools.product(axis, repeat=num_factors)))
    start = best()
    scipy.optimize.minimize(
        ascend,
        np.array(start),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-limit, limit)] * num_factors,
        options={
            "ftol": 1e-10,
            "gtol": 1e-6 * abs(values[start]),
            "maxfun": max(1, max_evaluations // (2 * num_factors + 1)),
        },
    )
    found = best()
    outside = any(abs(x) > limit - 1e-2 for x in found)
    beyond = evaluate(_neighbours(found, size / 4))
    edge = outside or not all(map(math.isfinite, beyond))
    return Found(found, values[found], values[(0.0,) * num_factors], edge, len(values))


def search_uphill(
    density: Callable[[list[Scales]], list[float]],
    limit: float,
    max_evaluations: int,
    step: Callable[[], object],
) -> Found:
    """The best of one factor: decades uphill from no change, and between them.

    There first at the maximum of a parabola through three decades, then by Brent's method.
    """
    values: dict[float, float] = {}

    def value(x: float) -> float:
        if x not in values:
            (values[x],) = density([(x,)])
            step()
        return values[x]

    def best() -> float:
        return max(values, key=lambda x: (values[x], -abs(x)))

    decade = math.log(10)
    heights = {i: value(i * decade) for i in (0, -1, 1)}

    def highest() -> int:
        return max(heights, key=lambda i: (heights[i], -abs(i)))

    for way in (-1, 1):
        while highest() == way * max(way * i for i in heights):
            following = highest() + way
            if abs(following) * decade > limit:
                break
            heights[following] = value(following * decade)
    center = highest()
    offset = _vertex([heights.get(center + i, -math.inf) for i in (-1, 0, 1)])
    if offset is not None:
        value((center + offset) * decade)
    if max_evaluations > 1:
        scipy.optimize.minimize_scalar(
            lambda x: -max(value(float(x)), -1e300),
            bounds=(max(best() - decade, -limit), min(best() + decade, limit)),
            method="bounded",
            options={"xatol": 0.02, "maxiter": max_evaluations - 1},
        )
    found = best()
    edge = abs(found) > limit - 2e-2 or not math.isfinite(min(values.values()))
    return Found((found,), values[found], values[0.0], edge, len(values))


def _vertex(heights: list[float]) -> float | None:
    """Where the parabola through heights at -1, 0 and 1 is largest; None if it is nowhere."""
    low, middle, high = heights
    bend = low - 2 * middle + high
    if not (math.isfinite(bend) and bend < 0):
        return None
    return 0.5 * (low - high) / bend


def _neighbours(center: Scales, distance: float) -> list[Scales]:
    """Below and above the center along each axis."""
    return [
        (*center[:i], center[i] + move, *center[i + 1 :])
        for i in range(len(center))
        for move in (-distance, distance)
    ]
