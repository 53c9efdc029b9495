"""Weight space or function space: counted flops and bytes, and the choice between them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

Space = Literal["weight_space", "function_space"]


@dataclass(frozen=True)
class Cost:
    """What one factorisation takes, with predictions for as many rows as there are data."""

    flops: float
    bytes: float

    def __str__(self) -> str:
        return f"{self.flops:.1e} flops, {format_bytes(self.bytes)}"


@dataclass(frozen=True)
class InferenceChoice:
    """Which space exact inference works in, and the numbers that decided it.

    Attributes
    ----------
    space
        "weight_space", "function_space", or the name of the user's own method.
    reason
        One line with the numbers.
    """

    space: str
    reason: str

    def __str__(self) -> str:
        return self.reason


def weight_space_cost(
    num_data: int, num_outputs: int, num_columns: int, num_parameters: int, itemsize: int
) -> Cost:
    """Jᵀ Λ J (P x P), its Cholesky factor, and a triangular solve for as many test rows as data.

    Four P x P matrices are alive at the peak.
    """
    rows, size = float(num_data * num_outputs), float(num_parameters)
    weighted = float(num_data * num_columns)
    return Cost(2 * weighted * size**2 + size**3 / 3 + rows * size**2, 4 * size**2 * itemsize)


def function_space_cost(
    num_data: int,
    num_outputs: int,
    num_columns: int,
    parameter_shapes: Sequence[Sequence[int]],
    itemsize: int,
    factor_bytes: float,
) -> Cost:
    """J Σ0 Jᵀ (N·C x N·C), a Cholesky factor (N·K x N·K), a solve for as many test rows as data.

    A matrix (d_out x d_in) takes N² d_in + (N·C)² d_out multiplications, any other tensor at most
    (N·C)² times its size; the symmetric kernel of the data is half of that with test rows. Four
    N·C x N·C matrices are alive at the peak, and the factors.
    """
    n, rows, weighted = float(num_data), float(num_data * num_outputs), num_data * num_columns
    cross = 0.0
    for shape in parameter_shapes:
        if len(shape) == 2:
            cross += 2 * (n**2 * shape[1] + rows**2 * shape[0])
        else:
            cross += 2 * rows**2 * math.prod(shape)
    flops = cross / 2 + weighted**3 / 3 + cross + weighted**2 * rows
    return Cost(flops, 4 * rows**2 * itemsize + factor_bytes)


def choose_space(
    requested: Literal["auto", "weight_space", "function_space"],
    *,
    num_data: int,
    num_outputs: int,
    parameter_shapes: Sequence[Sequence[int]],
    itemsize: int,
    factor_bytes: float,
    memory: float,
    num_columns: int | None = None,
) -> InferenceChoice:
    """Pick the space with fewer flops of those that fit in memory.

    `num_columns` is K, the rank of each datum's curvature root; C by default.

    Raises
    ------
    MemoryError
        If what was requested doesn't fit in `memory` bytes, with the numbers and what to do.
    """
    num_parameters = sum(math.prod(shape) for shape in parameter_shapes)
    columns = num_outputs if num_columns is None else num_columns
    costs: dict[Space, Cost] = {
        "weight_space": weight_space_cost(num_data, num_outputs, columns, num_parameters, itemsize),
        "function_space": function_space_cost(
            num_data, num_outputs, columns, parameter_shapes, itemsize, factor_bytes
        ),
    }
    sizes = f"N·C = {num_data}·{num_outputs}, P = {num_parameters}"
    counted = ", ".join(f"{_words(space)} {cost}" for space, cost in costs.items())
    candidates = list(costs) if requested == "auto" else [requested]
    fitting = [space for space in candidates if costs[space].bytes <= memory]
    if not fitting:
        raise MemoryError(
            f"exact inference ({sizes}) needs more than the {format_bytes(memory)} of memory there "
            f"is: {counted}. Raise memory_budget, choose fewer weights "
            '(parameters="last_layer" or a name pattern), or use less data'
        )
    best = min(fitting, key=lambda space: costs[space].flops)
    if requested != "auto":
        why = "as asked"
    elif len(fitting) == 1:
        why = f"the other doesn't fit in {format_bytes(memory)}"
    else:
        why = f"fewer flops, fits in {format_bytes(memory)}"
    return InferenceChoice(best, f"{_words(best)} ({why}): {sizes}; {counted}")


def available_memory(device: torch.device) -> float:
    """Bytes that can still be allocated on `device`, as far as the system tells."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    known = [m for m in (_system_memory(), _container_memory()) if m is not None]
    return min(known, default=4.0 * 2**30)


def _system_memory() -> float | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    except (OSError, ValueError):
        pass  # not Linux
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _container_memory() -> float | None:
    """What the control group leaves, if it sets a limit."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        return float(limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None


def format_bytes(count: float) -> str:
    """A number of bytes as people write it."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def _words(space: str) -> str:
    return space.replace("_", " ")
