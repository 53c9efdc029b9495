"""L-BFGS over torch parameters, converged by gradient norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lingp.inference.factorize import OutOfRangeError


@dataclass(frozen=True)
class Search:
    """Where a search ended: the objective, its gradient norm, evaluations it took."""

    value: float
    gradient_norm: float
    num_evaluations: int


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
