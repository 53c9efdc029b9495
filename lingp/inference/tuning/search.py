"""L-BFGS over torch parameters from several starts, converged by gradient norm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lingp.inference.factorize import OutOfRangeError

_SHIFTS = (0.0, -4.0, 4.0)  # of raw values, logarithms by default
_AGREEMENT = 1e-3  # nats by which two optima may differ and be called the same


@dataclass(frozen=True)
class Search:
    """Where a search ended.

    Attributes
    ----------
    value, gradient_norm
        The objective and its largest derivative at the end.
    num_evaluations
        Of all starts together.
    num_starts, num_agreeing
        From how many points the search started, and how many of them came to this value.
    """

    value: float
    gradient_norm: float
    num_evaluations: int
    num_starts: int = 1
    num_agreeing: int = 1


def maximize_from_starts(
    objective: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    threshold: float,
    max_evaluations: int,
    shifts: Sequence[Sequence[float]],
) -> Search:
    """`maximize` from shifted values of the parameters; they are left at the best of the optima.

    Parameters
    ----------
    objective, parameters, threshold, max_evaluations
        As in `maximize`; evaluations are counted for each start.
    shifts
        For each start, what is added to each parameter; see `start_shifts`.
    """
    start = [p.detach().clone() for p in parameters]
    best, best_values, evaluations, values = None, start, 0, []
    for shift in shifts:
        set_values(parameters, [p + step for p, step in zip(start, shift, strict=True)])
        found = maximize(objective, parameters, threshold, max_evaluations)
        evaluations += found.num_evaluations
        values.append(found.value)
        if best is None or found.value > best.value:
            best, best_values = found, [p.detach().clone() for p in parameters]
    set_values(parameters, best_values)
    if best is None:
        raise ValueError("shifts: expected at least one start, got none")
    agreeing = sum(value >= best.value - _AGREEMENT for value in values)
    return Search(best.value, best.gradient_norm, evaluations, len(values), agreeing)


def start_shifts(
    num_parameters: int, num_restarts: int | None, generator: torch.Generator | None = None
) -> list[tuple[float, ...]]:
    """Shifts of raw parameters to start from: none first, then ±4 of one, of two, ... of them.

    Parameters
    ----------
    num_parameters
        Parameters are shifted as a whole, the first ones first.
    num_restarts
        How many starts besides the first; None: all combinations of up to three parameters.
    generator
        Draws further shifts, from N(0, 4²), where the combinations are used up; a fixed seed by
        default.
    """
    free = min(num_parameters, 3)
    # few before many, the first parameters before the others
    grid = sorted(
        itertools.product(_SHIFTS, repeat=free),
        key=lambda shift: (sum(x != 0 for x in shift), [x == 0 for x in shift]),
    )
    shifts = [(*s, *(0.0,) * (num_parameters - free)) for s in grid]
    if num_restarts is None:
        return shifts
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    while len(shifts) < num_restarts + 1:
        draw = 4.0 * torch.randn(num_parameters, generator=generator, device=generator.device)
        shifts.append(tuple(draw.tolist()))
    return shifts[: num_restarts + 1]


def maximize(
    objective: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    threshold: float,
    max_evaluations: int,
) -> Search:
    """L-BFGS on `parameters`, in place, until the largest derivative is below `threshold`.

    Where the objective is not finite or out of range (`OutOfRangeError`), the search turns back.
    The parameters are left at the best point seen.
    """
    best = Search(-math.inf, math.inf, 0)
    best_x = np.concatenate([p.detach().cpu().double().reshape(-1).numpy() for p in parameters])

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, best_x
        value, gradient = _value_and_gradient(objective, parameters, x)
        if value is None:
            # finite, for the line search interpolates; worse than anything seen
            return 1e10 + 1e3 * abs(best.value if math.isfinite(best.value) else 0.0), gradient
        norm = float(np.abs(gradient).max())
        # gradients still tell points apart whose values rounding has made equal
        equal = abs(value - best.value) <= 1e-12 * abs(value)
        if norm < best.gradient_norm if equal else value > best.value:
            best, best_x = Search(value, norm, 0), x.copy()
        return -value, -gradient

    found = scipy.optimize.minimize(
        evaluate,
        best_x,
        jac=True,
        method="L-BFGS-B",
        # stop on the gradient alone: small steps are no proof of an optimum
        options={"gtol": threshold, "ftol": 0.0, "maxfun": max_evaluations, "maxiter": 10**6},
    )
    _set_flat(parameters, best_x)
    return Search(best.value, best.gradient_norm, int(found.nfev))


def _value_and_gradient(
    objective: Callable[[], Tensor], parameters: Sequence[Tensor], x: np.ndarray
) -> tuple[float | None, np.ndarray]:
    """Objective and gradient with the parameters set to x; None, 0 where it has no finite value."""
    nothing = None, np.zeros_like(x)
    _set_flat(parameters, x)
    try:
        with torch.enable_grad():
            value = objective()
            gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    except OutOfRangeError:
        return nothing
    flat = [
        (torch.zeros_like(p) if g is None else g).reshape(-1).to("cpu", torch.float64)
        for p, g in zip(parameters, gradients, strict=True)
    ]
    gradient = torch.cat(flat).numpy()
    if not (math.isfinite(float(value.detach())) and np.isfinite(gradient).all()):
        return nothing
    return float(value.detach()), gradient


def set_values(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into parameters."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


def _set_flat(parameters: Sequence[Tensor], x: np.ndarray) -> None:
    pieces = torch.as_tensor(x).split([p.numel() for p in parameters])
    set_values(parameters, [v.view_as(p) for v, p in zip(pieces, parameters, strict=True)])
