"""Search for the factors by which hyperparameters are multiplied.

The search is a grid of decades (half decades for one factor) around the current values and then
L-BFGS in logarithms from the best of it, with derivatives by central differences: all values it
needs at a time come from one pass over the validation rows. One factor whose every value takes a
factorisation is searched by decades, uphill from the current value, and then between them.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import scipy.optimize

_DIFFERENCE = 1e-3  # of logarithms, for central differences

Scales = tuple[float, ...]
"""Logarithms of the factors searched over."""


class ScaledObjective(ABC):
    """A function of some factors to be maximised, which is evaluated once at each of them.

    Parameters
    ----------
    num_factors
        The number of factors.

    Attributes
    ----------
    values
        The objective at all factors tried.
    """

    def __init__(self, num_factors: int) -> None:
        self.num_factors = num_factors
        self.values: dict[Scales, float] = {}

    def __call__(self, points: Sequence[Scales]) -> list[float]:
        """The objective at some factors; -inf where there is none."""
        new = [p for p in points if p not in self.values]
        if new:
            self.values.update(zip(new, self.evaluate(new), strict=True))
        return [self.values[p] for p in points]

    @abstractmethod
    def evaluate(self, points: list[Scales]) -> list[float]:
        """The objective at factors that haven't been tried."""

    def best(self, limit: float = math.inf) -> Scales:
        """The best within the limit of what was tried; where values tie, the least change."""
        inside = [p for p in self.values if max(map(abs, p)) <= limit]
        return max(inside, key=lambda p: (self.values[p], -sum(x * x for x in p)))


def search_grid(
    objective: ScaledObjective, limit: float, max_evaluations: int
) -> tuple[Scales, bool]:
    """The best of a grid, then of an ascent from there by central differences.

    Returns the factors, and whether they lie at the edge of what was searched.
    """
    num_factors, values = objective.num_factors, objective.values
    size = math.log(10) / (2 if num_factors == 1 else 1)
    number = math.floor(limit / size + 1e-9)
    axis = [i * size for i in range(-number, number + 1)]

    def descend(x: np.ndarray) -> tuple[float, np.ndarray]:
        center = tuple(x.tolist())
        value, *around = objective([center, *_neighbours(center, _DIFFERENCE)])
        if not all(map(math.isfinite, (value, *around))):
            return 1e10 + 1e3 * abs(values[start]), np.zeros_like(x)  # turn back from here
        ends = np.array(around).reshape(-1, 2)
        return -value, (ends[:, 0] - ends[:, 1]) / (2 * _DIFFERENCE)

    objective(list(itertools.product(axis, repeat=num_factors)))
    start = objective.best(limit)
    scipy.optimize.minimize(
        descend,
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
    found = objective.best(limit)
    outside = any(abs(x) > limit - 1e-2 for x in found)
    beyond = objective(_neighbours(found, size / 4))
    return found, outside or not all(map(math.isfinite, beyond))


def search_uphill(
    objective: ScaledObjective, limit: float, max_evaluations: int
) -> tuple[Scales, bool]:
    """The best of one factor: decades uphill from no change, and between them.

    Between decades, the search looks at the maximum of a parabola through three of them, and then
    goes on by Brent's method. It returns what `search_grid` returns.
    """

    def value(x: float) -> float:
        return objective([(x,)])[0]

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
        (best,) = objective.best()
        scipy.optimize.minimize_scalar(
            lambda x: -max(value(float(x)), -1e300),
            bounds=(max(best - decade, -limit), min(best + decade, limit)),
            method="bounded",
            options={"xatol": 0.02, "maxiter": max_evaluations - 1},
        )
    found = objective.best()
    edge = abs(found[0]) > limit - 2e-2 or not math.isfinite(min(objective.values.values()))
    return found, edge


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
