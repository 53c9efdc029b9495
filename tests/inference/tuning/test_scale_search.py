"""Searches over factors whose every value is costly."""

from __future__ import annotations

import math

import pytest

from lingp.inference.tuning.scale_search import ScaledObjective, search_uphill


class OneFactor(ScaledObjective):
    """A function of one factor's logarithm, and where it was evaluated."""

    def __init__(self, function):
        super().__init__(1)
        self.function, self.calls = function, []

    def evaluate(self, points):
        self.calls.extend(points)
        return [self.function(x) for (x,) in points]


def test_uphill_search_finds_the_optimum():
    density = OneFactor(lambda x: -((x - 5.3) ** 2) / (1 + abs(x - 5.3)))
    best, at_boundary = search_uphill(density, 15.0, 30)
    assert best[0] == pytest.approx(5.3, abs=0.02)  # `xatol`
    assert density.values[best] == density.function(best[0]) >= -(0.02**2)
    assert density.values[(0.0,)] == density.function(0.0)
    assert not at_boundary
    assert len(set(density.calls)) == len(density.calls) == len(density.values) <= 20


@pytest.mark.parametrize("top", [-11.0, -1.0, 0.4, 8.9])
def test_uphill_search_of_a_parabola_needs_one_value_between_decades(top):
    density = OneFactor(lambda x: -((x - top) ** 2))
    best, _ = search_uphill(density, 15.0, 1)
    assert best[0] == pytest.approx(top, abs=1e-12)
    decades = round(abs(top) / math.log(10))
    assert len(density.values) == 3 + decades + 1


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_uphill_search_says_when_it_came_to_the_edge(sign):
    best, at_boundary = search_uphill(OneFactor(lambda x: sign * x), 10.0, 30)
    assert at_boundary
    assert best[0] == pytest.approx(sign * 10.0, abs=0.02)


def test_uphill_search_leaves_what_it_cannot_improve():
    assert search_uphill(OneFactor(lambda x: 1.0), 10.0, 30) == ((0.0,), False)


def test_uphill_search_turns_back_from_what_has_no_value():
    """A factor that cannot be factorised counts as the edge."""
    best, at_boundary = search_uphill(OneFactor(lambda x: x if x < 3.0 else -math.inf), 10.0, 30)
    assert at_boundary
    assert math.log(10) <= best[0] < 3.0
