"""Conjugate gradients with a preconditioner, for Hessians that are nearly I + Φᵀ Φ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CGResult:
    """Where conjugate gradients stopped.

    Attributes
    ----------
    x
        The solution, (P,).
    residual
        |b - H x| / |b| in the preconditioner's norm, by the recursion.
    positive
        Whether H had positive curvature along every direction tried.
    """

    x: Tensor
    residual: float
    positive: bool


def conjugate_gradients(
    product: Product,
    right: Tensor,
    precondition: Product,
    *,
    tolerance: float,
    max_iterations: int,
    first: Tensor | None = None,
) -> CGResult:
    """H⁻¹ b for a symmetric H.

    Stops at a direction of negative curvature, before using it: what has been found so far is then
    an ascent direction of b all the same, and the preconditioned b where nothing has been found
    (Nocedal and Wright, Numerical Optimization, 2nd ed., algorithm 7.1).

    Parameters
    ----------
    product
        v -> H v, (P,).
    right
        b, (P,).
    precondition
        v -> M⁻¹ v with a positive definite M near H.
    tolerance
        On `CGResult.residual`.
    max_iterations
        Products with H.
    first
        M⁻¹ b, if known.
    """
    residual = right
    preconditioned = precondition(right) if first is None else first
    direction, x = preconditioned, right.new_zeros(right.shape)
    start = square = float(residual @ preconditioned)
    for iteration in range(max_iterations):
        if square <= tolerance**2 * start:
            break
        moved = product(direction)
        curvature = float(direction @ moved)
        if not curvature > 0:
            return CGResult(x if iteration else direction, (square / start) ** 0.5, False)
        step = square / curvature
        x = x + step * direction
        residual = residual - step * moved
        preconditioned = precondition(residual)
        previous, square = square, max(float(residual @ preconditioned), 0.0)
        direction = preconditioned + square / previous * direction
    return CGResult(x, (square / start) ** 0.5 if start > 0 else 0.0, True)
