"""Counted flops and bytes of the methods, held to formulas and to what runs take."""

from __future__ import annotations

import dataclasses

import pytest

from lingp.inference.cost import (
    Workload,
    function_space_cost,
    iterative_cost,
    sparse_cost,
    weight_space_cost,
)

# 10 data, 3 outputs, 2 columns of each curvature root; P = 25
WORK = Workload(10, 3, 2, [(5, 4), (5,)], 8, factor_bytes=1000)
# of a pair of inputs: the matrix 4 + 9·5, the vector at most 9·5
PAIR = 2 * (4 + 45 + 45)
HELD = 8 * 10 * (8 * 3 + 3 * 6)  # outputs and curvature roots
AVERAGED = dataclasses.replace(WORK, num_posteriors=4, averaged=True)
METHODS = {
    "weight": weight_space_cost,
    "function": function_space_cost,
    "sparse": lambda work: sparse_cost(work, 2),
    "iterative": lambda work: iterative_cost(work, 2, False),
    "iterative, dense": lambda work: iterative_cost(work, 2, True),
}
every_method = pytest.mark.parametrize("cost", METHODS.values(), ids=METHODS)


def test_weight_space_is_the_count():
    cost = weight_space_cost(WORK)
    assert cost.flops == pytest.approx(2 * 20 * 25**2 + 25**3 / 3 + 30 * 25**2)
    assert cost.bytes == 5 * 25**2 * 8 + HELD
    assert cost.tuning_bytes == 8 * 25**2 * 8 + HELD


def test_weight_space_by_layers_is_the_count():
    """With averaged curvature an inverse, where that is less than a solve for all outputs."""
    work = dataclasses.replace(AVERAGED, row_flops=700.0)
    posteriors, solved = 4 * (7000 + 25**3 / 3), 30 * 25**2
    inverted = 2 / 3 * 25**3 + 7000
    assert inverted < solved
    assert weight_space_cost(work).flops == pytest.approx(posteriors + solved + 4 * inverted)
    slow = dataclasses.replace(work, row_flops=7000.0)
    assert weight_space_cost(slow).flops == pytest.approx(4 * (70_000 + 25**3 / 3) + 5 * solved)


def test_function_space_is_the_count():
    cost = function_space_cost(WORK)
    assert cost.flops == pytest.approx(1.5 * 100 * PAIR + 20**3 / 3 + 20**2 * 30)
    assert cost.bytes == 4 * 900 * 8 + 1000 + HELD


def test_sparse_is_the_count():
    cost = sparse_cost(WORK, 2)  # m = 6; one pass for A and one for predictions
    passes = 2 * (10 * 2 * PAIR + 30 * 36)
    assert cost.flops == pytest.approx(
        passes + 2 * 20 * 36 + 6**3 / 3 + 30 * 36 + 4 * PAIR + 6**3 / 3
    )
    assert cost.bytes == pytest.approx(
        (8 * 36 * 8 + 200) / 0.75 + HELD
    )  # two of ten inputs' factors


def test_iterative_is_the_count():
    each = 30 * (30 + 16)  # iterations and right-hand sides
    sparse = sparse_cost(WORK, 2).flops
    products = iterative_cost(WORK, 2, False)
    assert products.flops == pytest.approx(each * (4 * 10 * 25 + 4 * 20 * 6) + sparse)
    # three outputs' vectors twice, and matrices m x m, in a quarter of the memory
    block = 3 * (12 * 30 + 3 * 25) * 8
    assert products.bytes == 4 * (2 * block + 8 * 36 * 8) + HELD
    dense = iterative_cost(WORK, 2, True)
    assert dense.flops == pytest.approx(each * (2 * 20**2 + 4 * 20 * 6) + sparse + 50 * PAIR)
    more = iterative_cost(dataclasses.replace(WORK, factor_bytes=1e6), 2, True)
    assert more.bytes == 2 * (900 * 8 + 2e6) + HELD
    assert iterative_cost(WORK, 40, False).bytes >= 4 * 30 * 120 * 8  # features


@every_method
def test_averaged_curvature_takes_a_posterior_and_covariances_each_time(cost):
    once, averaged = cost(WORK), cost(AVERAGED)
    assert once.flops < averaged.flops < 5 * once.flops
    assert averaged.bytes >= once.bytes + 16 * 90 * 8  # N x C x C arrays


@pytest.mark.parametrize("name", ["weight", "sparse"])
def test_pieces_of_the_data_take_memory_where_data_are_streamed(name):
    cost = METHODS[name]
    large = dataclasses.replace(WORK, num_data=10_000, factor_bytes=1e6)
    assert cost(dataclasses.replace(large, chunk_bytes=1e6)).bytes > cost(large).bytes + 2e6


@every_method
def test_pieces_are_never_more_than_all_data(cost):
    assert cost(dataclasses.replace(WORK, chunk_bytes=1e12)).bytes < cost(WORK).bytes + 1e5


def test_memory_of_sparse_is_free_of_rows_but_for_what_is_held_per_row():
    large = dataclasses.replace(WORK, num_data=1000, factor_bytes=100_000)
    free = [sparse_cost(work, 2).bytes - work.data_bytes for work in (large, WORK)]
    assert free[0] == pytest.approx(free[1])
    assert sparse_cost(large, 2).flops < 101 * sparse_cost(WORK, 2).flops
