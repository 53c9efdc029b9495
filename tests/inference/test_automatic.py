"""The choice among inference methods, and what it says."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from lingp.inference import Workload, choose_inference, flop_limit
from lingp.inference.cost import function_space_cost, sparse_cost, weight_space_cost

SHAPES = [(50, 6), (50,), (1, 50), (1,)]  # P = 401
LARGE = [(1024, 8), (1024,), (1024, 1024), (1024,), (1, 1024), (1,)]  # P = 1.06 million


def work(num_data=100, num_outputs=1, shapes=SHAPES, **more):
    return Workload(num_data, num_outputs, num_outputs, shapes, 8, **more)


def choose(requested="auto", num_data=100, memory=1e9, limit=1e13, **more):
    return choose_inference(requested, work(num_data, **more), memory=memory, limit=limit)


def test_the_smaller_side_decides():
    assert choose(num_data=100).space == "function_space"
    assert choose(num_data=10_000).space == "weight_space"


def test_the_reason_is_one_line_with_numbers():
    reason = str(choose())
    assert "\n" not in reason
    assert reason.startswith("function space (fits in 1 GB): N·C = 100·1, P = 401; ")
    assert reason.count(" flops, ") == 4


def test_what_does_not_fit_is_not_chosen():
    # a kernel takes N² flops per input of a layer: of 2000 data with 1600 weights fewer than JᵀJ
    job = work(2000, shapes=[(40, 39), (40,)])
    weight, function = weight_space_cost(job), function_space_cost(job)
    assert function.flops < weight.flops
    assert function.tuning_bytes > weight.tuning_bytes
    enough = choose_inference("auto", job, memory=function.tuning_bytes)
    assert enough.space == "function_space"
    choice = choose_inference("auto", job, memory=weight.tuning_bytes)
    assert choice.space == "weight_space"
    assert "function space doesn't fit" in choice.reason


def test_exact_inference_is_preferred_up_to_a_limit_of_flops():
    job = work(10_000, shapes=LARGE)
    exact = function_space_cost(job).flops
    sparse = sparse_cost(job, 1024).flops
    assert sparse < exact / 2  # a fraction of the flops
    more = {"num_data": 10_000, "shapes": LARGE, "memory": 1e11}
    assert choose(**more, limit=1.01 * exact).space == "function_space"
    choice = choose(**more, limit=0.99 * exact)
    assert choice.space == "sparse"
    assert "function space takes more than" in choice.reason


def test_exact_inference_past_the_limit_is_kept_where_it_is_cheaper_than_sparse():
    """Fewer weights than inducing points would be useful: exact, however many data there are."""
    assert choose(num_data=10**10, shapes=[(1, 50)], memory=1e13).space == "weight_space"


def test_iterative_inference_where_factorisations_do_not_fit():
    shapes = [(256, 8), (256, 256), (1, 256)]
    memory = 0.9 * function_space_cost(work(4_000, shapes=shapes)).bytes
    choice = choose(num_data=4_000, shapes=shapes, memory=memory)
    assert choice.space == "iterative"
    assert "function space doesn't fit" in choice.reason
    assert choice.num_inducing >= 1


def test_sparse_has_as_many_inducing_points_as_memory_and_flops_allow():
    def inducing(**more):
        choice = choose(num_data=60_000, num_outputs=10, shapes=LARGE, **more)
        assert choice.space == "sparse"
        assert f"with {choice.num_inducing} inducing inputs" in choice.reason
        return choice.num_inducing

    most = inducing(memory=4e9, limit=1e18)
    assert most == 100
    job = work(60_000, 10, LARGE)
    small = sparse_cost(job, 50)
    assert inducing(memory=small.tuning_bytes, limit=1e18) == 50
    assert inducing(memory=4e9, limit=small.flops) == 50
    assert inducing(memory=4e9, limit=0.0) == 6  # a useful number, m = 60 of 64, takes its time


def test_many_outputs_have_few_inducing_inputs():
    choice = choose(num_data=10**6, num_outputs=2000, shapes=LARGE, memory=1e14)
    assert (choice.space, choice.num_inducing) == ("sparse", 1)
    choice = choose(num_data=10**6, num_outputs=100, shapes=LARGE, memory=1e14, limit=1e18)
    assert (choice.space, choice.num_inducing) == ("sparse", 32)


def test_nothing_fits():
    with pytest.raises(MemoryError, match=r"every method.*1 kB.*flops.*last_layer"):
        choose(num_data=10_000, memory=1e3)


@pytest.mark.parametrize("space", ["weight_space", "function_space", "sparse", "iterative"])
def test_a_request_is_kept_or_refused_with_numbers(space):
    choice = choose(space)
    assert choice.space == space
    assert "as asked" in choice.reason
    with pytest.raises(MemoryError, match=r"needs more than the 8 kB.*memory_budget"):
        choose(space, memory=8e3)


def test_a_request_needs_no_memory_for_gradients():
    cost = weight_space_cost(work(10_000))
    assert cost.tuning_bytes > cost.bytes
    assert choose("weight_space", num_data=10_000, memory=cost.bytes).space == "weight_space"
    assert choose(num_data=10_000, memory=cost.bytes).space != "weight_space"
    assert choose(num_data=10_000, memory=cost.tuning_bytes).space == "weight_space"


def test_a_hundred_thousand_weights_in_weight_space_are_refused_before_they_are_tried():
    """P x P would be 80 GB, five times over."""
    with pytest.raises(MemoryError, match="400 GB"):
        choose("weight_space", shapes=[(100_000, 1)], memory=32e9)


@pytest.mark.parametrize("memory", [1e6, 1e7, 1e8, 1e9, 1e10, 1e12])
@pytest.mark.parametrize("num_data", [10, 1000, 100_000, 10_000_000])
@pytest.mark.parametrize("num_outputs", [1, 10, 1000])
def test_whatever_the_job_the_choice_fits(memory, num_data, num_outputs):
    job = work(
        num_data, num_outputs, LARGE, averaged=True, num_posteriors=8, chunk_bytes=memory / 8
    )
    try:
        choice = choose_inference("auto", job, memory=memory, limit=1e13)
    except MemoryError:
        assert sparse_cost(job, 1).tuning_bytes > memory
        return
    assert choice.space in choice.reason.replace(" ", "_")
    if choice.space == "sparse":
        assert sparse_cost(job, choice.num_inducing).tuning_bytes <= memory
    elif choice.space != "iterative":
        cost = {"weight_space": weight_space_cost, "function_space": function_space_cost}
        assert cost[choice.space](job).tuning_bytes <= memory


def test_devices_made_for_it_may_compute_more():
    limits = [flop_limit(torch.device(name)) for name in ("cpu", "cuda")]
    assert 0 < limits[0] < limits[1] < math.inf
    assert dataclasses.is_dataclass(Workload)
