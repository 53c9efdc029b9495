"""The choice of space by counted flops and bytes, and what it says."""

from __future__ import annotations

import math

import pytest
import torch

from lingp.inference.cost import (
    available_memory,
    choose_space,
    format_bytes,
    function_space_cost,
    weight_space_cost,
)

SHAPES = [(50, 6), (50,), (1, 50), (1,)]  # P = 401


def choose(requested="auto", num_data=100, memory=1e9, shapes=SHAPES):
    return choose_space(
        requested,
        num_data=num_data,
        num_outputs=1,
        parameter_shapes=shapes,
        itemsize=8,
        factor_bytes=0,
        memory=memory,
    )


def test_costs_are_the_counts():
    # 10 data, 3 outputs, 2 columns of each curvature root
    cost = weight_space_cost(10, 3, 2, 7, 8)
    assert cost.flops == pytest.approx(2 * 20 * 49 + 7**3 / 3 + 30 * 49)
    assert cost.bytes == 4 * 49 * 8
    cost = function_space_cost(10, 3, 2, [(5, 4), (5,)], 8, 1000)
    products = (100 * 4 + 900 * 5) + 900 * 5
    assert cost.flops == pytest.approx(3 * products + 20**3 / 3 + 20**2 * 30)
    assert cost.bytes == 4 * 900 * 8 + 1000


def test_the_smaller_side_decides():
    assert choose(num_data=100).space == "function_space"
    assert choose(num_data=10_000).space == "weight_space"


def test_the_reason_is_one_line_with_numbers():
    reason = str(choose())
    assert "\n" not in reason
    assert "function space (fewer flops, fits in 1 GB)" in reason
    assert "N·C = 100·1, P = 401" in reason
    assert reason.count("flops,") == 3


def test_what_does_not_fit_is_not_chosen():
    # with 2000 weights in one layer, function space of 1500 data takes more memory than allowed
    choice = choose(num_data=100, memory=1e6, shapes=[(20, 100)])
    assert choice.space == "function_space"
    assert "doesn't fit" in choice.reason
    with pytest.raises(MemoryError, match=r"function space .*flops.*last_layer"):
        choose(num_data=10_000, memory=1e5)


def test_a_request_is_kept_or_refused_with_numbers():
    assert choose("weight_space").space == "weight_space"
    assert "as asked" in choose("weight_space").reason
    with pytest.raises(MemoryError, match=r"needs more than the 10 kB.*memory_budget"):
        choose("weight_space", memory=1e4)


def test_a_hundred_thousand_weights_in_weight_space_are_refused_before_they_are_tried():
    """P x P would be 80 GB, four times over."""
    with pytest.raises(MemoryError, match="320 GB"):
        choose("weight_space", shapes=[(100_000, 1)], memory=32e9)


def test_memory_is_known_and_readable():
    memory = available_memory(torch.device("cpu"))
    assert math.isfinite(memory)
    assert memory > 1e6
    assert [format_bytes(b) for b in (2e3, 3.5e6, 1.25e9, 7e12)] == [
        "2 kB", "3.5 MB", "1.25 GB", "7 TB",
    ]  # fmt: skip
