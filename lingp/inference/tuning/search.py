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
class Optimum:
    """Where a search ended.

    Attributes
    ----------
    value, gradient_norm
        The objective and its largest derivative at the end.
    num_evaluations
        The evaluations of all starts together.
    num_starts, num_agreeing
        The number of points that the search started from, and of those that came to this value.
    """

    value: float
    gradient_norm: float
    num_evaluations: int
    num_starts: int = 1
    num_agreeing: int = 1

    def better_than(self, other: Optimum) -> bool:
        """Whether the value is larger; where rounding has made values equal, gradients decide."""
        if abs(self.value - other.value) <= 1e-12 * abs(self.value):
            return self.gradient_norm < other.gradient_norm
        return self.value > other.value


def maximize_from_starts(
    objective: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    threshold: float,
    max_evaluations: int,
    shifts: Sequence[Sequence[float]],
) -> Optimum:
    """`maximize` from shifted values of the parameters; they are left at the best of the optima.

    Parameters
    ----------
    objective, parameters, threshold, max_evaluations
        The same as for `maximize`; evaluations are counted for each start.
    shifts
        The numbers that are added to each parameter, for each start; see `start_shifts`.
    """
    start, sizes = flat(parameters), torch.tensor([p.numel() for p in parameters])
    found: list[tuple[Optimum, Tensor]] = []
    for shift in shifts:
        set_flat(parameters, start + start.new_tensor(shift).repeat_interleave(sizes))
        optimum = maximize(objective, parameters, threshold, max_evaluations)
        found.append((optimum, flat(parameters)))
    best, best_x = max(found, key=lambda each: each[0].value)
    set_flat(parameters, best_x)
    return Optimum(
        best.value,
        best.gradient_norm,
        sum(optimum.num_evaluations for optimum, _ in found),
        len(found),
        sum(optimum.value >= best.value - _AGREEMENT for optimum, _ in found),
    )


def start_shifts(
    num_parameters: int, num_restarts: int | None, generator: torch.Generator | None = None
) -> list[tuple[float, ...]]:
    """Shifts of raw parameters to start from: none first, then ±4 of one, of two, ... of them.

    Parameters
    ----------
    num_parameters
        Parameters are shifted as a whole, the first ones first.
    num_restarts
        The number of starts besides the first; None: all combinations of up to three parameters.
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
) -> Optimum:
    """L-BFGS on `parameters`, in place, until the largest derivative is below `threshold`.

    Where the objective is not finite or out of range (`OutOfRangeError`), the search turns back.
    The parameters are left at the best point seen.
    """
    best, best_x = Optimum(-math.inf, math.inf, 0), flat(parameters)

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, best_x
        set_flat(parameters, torch.as_tensor(x))
        found = _value_and_gradient(objective, parameters)
        if found is None:
            # finite, for the line search interpolates; worse than anything seen
            worse = 1e10 + 1e3 * abs(best.value if math.isfinite(best.value) else 0.0)
            return worse, np.zeros_like(x)
        value, gradient = found
        following = Optimum(value, float(gradient.abs().max()), 0)
        if following.better_than(best):
            best, best_x = following, flat(parameters)
        return -value, -gradient.numpy()

    found = scipy.optimize.minimize(
        evaluate,
        best_x.numpy(),
        jac=True,
        method="L-BFGS-B",
        # stop on the gradient alone: small steps are no proof of an optimum
        options={"gtol": threshold, "ftol": 0.0, "maxfun": max_evaluations, "maxiter": 10**6},
    )
    set_flat(parameters, best_x)
    return Optimum(best.value, best.gradient_norm, int(found.nfev))


def _value_and_gradient(
    objective: Callable[[], Tensor], parameters: Sequence[Tensor]
) -> tuple[float, Tensor] | None:
    """The objective and its flat gradient at the parameters; None where they aren't finite."""
    try:
        with torch.enable_grad():
            value = objective()
            gradient = flat_gradient(value, parameters)
    except OutOfRangeError:
        return None
    if not (math.isfinite(float(value.detach())) and bool(torch.isfinite(gradient).all())):
        return None
    return float(value.detach()), gradient


def flat_gradient(
    value: Tensor, parameters: Sequence[Tensor], retain_graph: bool = False
) -> Tensor:
    """Derivatives in all parameters, as `flat` has them; 0 in those that have no say."""
    found = torch.autograd.grad(
        value,
        parameters,
        retain_graph=retain_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return flat(found)


def flat(parameters: Sequence[Tensor]) -> Tensor:
    """The values of all parameters, one after the other, float64 on the CPU."""
    return torch.cat([p.detach().reshape(-1).to("cpu", torch.float64) for p in parameters])


def set_flat(parameters: Sequence[Tensor], x: Tensor) -> None:
    """Copy values, one after the other, into parameters."""
    pieces = x.split([p.numel() for p in parameters])
    with torch.no_grad():
        for parameter, values in zip(parameters, pieces, strict=True):
            parameter.copy_(values.view_as(parameter))
