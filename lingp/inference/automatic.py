"""Which inference method: the best that memory holds, in bounded time."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from lingp.inference.cost import (
    Cost,
    Workload,
    function_space_cost,
    iterative_cost,
    sparse_cost,
    weight_space_cost,
)
from lingp.runtime.memory import format_bytes
from lingp.runtime.plain import storable

Space = Literal["weight_space", "function_space", "sparse", "iterative"]
SPACES: tuple[Space, ...] = get_args(Space)

MOST_INDUCING = 1000
"""Most inducing points m = M·C that are chosen here, at 32 inputs or more, as by `Sparse()`."""
_FEWEST_INPUTS = 32

_FEWEST_INDUCING = 64  # fewer save no time worth having


@storable
@dataclass(frozen=True)
class InferenceChoice:
    """The method that inference uses, and the numbers that decided it.

    Attributes
    ----------
    space
        "weight_space", "function_space", "sparse", "iterative", or the name of the user's own.
    reason
        One line with the numbers.
    num_inducing
        M, the number of inducing inputs of a sparse posterior or of a preconditioner; None where
        nothing was chosen here or there are none.
    bytes
        The bytes that the method takes at its peak, as counted; 0 for the user's own.
    flops
        The flops of the posterior, the evidence and predictions for as many rows as there are data,
        as counted; 0 for the user's own.
    """

    space: str
    reason: str
    num_inducing: int | None = None
    bytes: float = 0.0
    flops: float = 0.0

    def __str__(self) -> str:
        return self.reason


def flop_limit(device: torch.device) -> float:
    """Most flops that are spent on the quality of exact inference, or on more inducing points.

    On CPUs 1e13: two minutes at the 1e11 a second that a few cores reach in float64. On CUDA 1e15:
    half a minute on cards made for float64, half an hour on others.
    """
    return 1e15 if device.type == "cuda" else 1e13


def choose_inference(
    requested: Literal["auto"] | Space,
    work: Workload,
    *,
    memory: float,
    limit: float = math.inf,
    among: Sequence[Space] = SPACES,
) -> InferenceChoice:
    """Pick a method that fits in memory: quality first, in bounded time.

    1. The exact space of fewer flops, if these are within `limit` or no more than those of sparse
       inference; else the other one.
    2. Iterative inference, within `limit`.
    3. Sparse inference, with as many inducing points, up to m = M·C = 1000, as memory and `limit`
       allow.
    4. Whatever fits, by flops.

    What is chosen has memory for gradients of the evidence too; what is asked for by name needs it
    for posteriors and predictions only.

    Parameters
    ----------
    requested
        A method, or "auto".
    work
        The job.
    memory
        Bytes that may be used.
    limit
        Flops, see `flop_limit`.
    among
        Methods that "auto" may choose.

    Raises
    ------
    MemoryError
        If what was requested doesn't fit in `memory` bytes, with the numbers and what to do.
    """
    inducing = _most_inducing(work, lambda m: sparse_cost(work, m), memory, limit)
    iterative, preconditioner = min(
        (_iterative(work, dense, memory, limit) for dense in (True, False)),
        key=lambda plan: (plan[0].tuning_bytes > memory, plan[0].flops),
    )
    costs: dict[Space, Cost] = {
        "weight_space": weight_space_cost(work),
        "function_space": function_space_cost(work),
        "sparse": sparse_cost(work, inducing),
        "iterative": iterative,
    }
    sizes = f"N·C = {work.num_data}·{work.num_outputs}, P = {work.num_parameters}"
    if requested == "auto":
        found = _best(costs, among, memory, limit)
    else:
        fits = costs[requested].bytes <= memory
        found = (requested, "as asked") if fits else None
    counted = "; ".join(f"{_words(space)} {costs[space]}" for space in SPACES)
    if found is None:
        raise MemoryError(_refusal(requested, sizes, counted, memory))
    space, why = found
    points = {"sparse": inducing, "iterative": preconditioner}.get(space)
    where = "" if points is None else f" with {points} inducing inputs"
    reason = f"{_words(space)}{where} ({why}): {sizes}; {counted}"
    return InferenceChoice(space, reason, points, costs[space].tuning_bytes, costs[space].flops)


def _best(
    costs: dict[Space, Cost], among: Sequence[Space], memory: float, limit: float
) -> tuple[Space, str] | None:
    """The method by the rules above, and why; None if none fits."""
    passed: list[str] = []
    exact = sorted(SPACES[:2], key=lambda space: costs[space].flops)
    most: dict[Space, float] = {space: max(limit, costs["sparse"].flops) for space in exact}
    most |= {"iterative": limit, "sparse": math.inf}
    fits = f"fits in {format_bytes(memory)}"
    for space in most:
        if space not in among:
            continue
        if costs[space].tuning_bytes > memory:
            passed.append(f"{_words(space)} doesn't fit")
        elif costs[space].flops > most[space]:
            passed.append(f"{_words(space)} takes more than {limit:.0e} flops")
        else:
            return space, ", ".join([*passed, fits])
    fitting = [space for space in among if costs[space].tuning_bytes <= memory]
    if not fitting:
        return None
    return min(fitting, key=lambda space: costs[space].flops), f"the only one that {fits}"


def _most_inducing(work: Workload, cost: Callable[[int], Cost], memory: float, limit: float) -> int:
    """The largest M that memory and flops allow; at least one."""

    def allowed(inducing: int) -> bool:
        found = cost(inducing)
        few = inducing * work.num_outputs <= _FEWEST_INDUCING
        return found.tuning_bytes <= memory and (few or found.flops <= limit)

    most = min(work.num_data, max(_FEWEST_INPUTS, MOST_INDUCING // work.num_outputs))
    # costs grow with M: the first one that is not allowed, by bisection
    return max(1, bisect_left(range(1, most + 1), True, key=lambda m: not allowed(m)))


def _iterative(work: Workload, dense: bool, memory: float, limit: float) -> tuple[Cost, int]:
    """Iterative inference with or without a dense kernel, and M of its preconditioner."""
    inducing = _most_inducing(work, lambda m: iterative_cost(work, m, dense), memory, limit)
    return iterative_cost(work, inducing, dense), inducing


def _refusal(requested: str, sizes: str, counted: str, memory: float) -> str:
    what = "every method of inference" if requested == "auto" else f"{_words(requested)} inference"
    remedy = "Raise memory_budget, choose fewer weights "
    remedy += '(parameters="last_layer" or a name pattern), or use less data'
    if requested != "auto":
        remedy += '; or let inference="auto" choose'
    return (
        f"{what} needs more than the {format_bytes(memory)} of memory there is ({sizes}): "
        f"{counted}. {remedy}"
    )


def _words(space: str) -> str:
    return space.replace("_", " ")
