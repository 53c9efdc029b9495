"""Bare parameters added to or multiplied with the examples: x + p, p ∘ x, by broadcasting.

Scales, shifts and learned positions are usually written this way rather than as a layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lingp.linearization.rules.base import Dense, Operation, Piece, rule_for


def _broadcast_sum(g: Tensor, shape: torch.Size) -> Tensor:
    """Sum (C, B, *space) to (C, B, *shape) where `shape` broadcasts against (B, *space)."""
    padded = (1,) * (g.dim() - 1 - len(shape)) + tuple(shape)
    axes = [d + 1 for d in range(1, len(padded)) if padded[d] == 1 and g.shape[d + 1] != 1]
    if axes:
        g = g.sum(axes, keepdim=True)
    return g.reshape(*g.shape[:2], *shape)


def _is_parameter(t: object) -> bool:
    return isinstance(t, Tensor) and isinstance(t if t._base is None else t._base, nn.Parameter)


def _bind(first: object, second: object) -> Operation | None:
    parameter, x = (first, second) if _is_parameter(first) else (second, first)
    if not (isinstance(x, Tensor) and isinstance(parameter, Tensor)):
        return None
    if parameter.dim() > x.dim() or (parameter.dim() == x.dim() > 0 and parameter.shape[0] != 1):
        return None  # the parameter has an axis of its own where the examples are
    return Operation(x, {"parameter": parameter})


@rule_for(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
class SumRule:
    """h = x + p: ∂f/∂p = g, summed over the axes along which p is repeated."""

    def bind(self, input: object, other: object, alpha: float = 1) -> Operation | None:
        return _bind(input, other) if alpha == 1 else None

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        return {"parameter": Dense(_broadcast_sum(g, operation.parameters["parameter"].shape))}


@rule_for(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
class ProductRule:
    """h = p ∘ x: ∂f/∂p = g ∘ x, summed over the axes along which p is repeated."""

    def bind(self, input: object, other: object) -> Operation | None:
        return _bind(input, other)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        return {"parameter": Dense(_broadcast_sum(g * x, operation.parameters["parameter"].shape))}
