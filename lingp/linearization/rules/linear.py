"""Linear maps: h = a Wᵀ + b, over any leading axes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lingp.linearization.rules.base import Operation, Outer, Piece, rule_for


@rule_for(F.linear)
class LinearRule:
    """∂f/∂W = Σ_s g_s a_sᵀ and ∂f/∂b = Σ_s g_s, s over all axes but the examples'."""

    def bind(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Operation | None:
        if weight.dim() != 2:
            return None
        parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return Operation(input, parameters, any_axis=True)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        a = x.reshape(x.shape[0], -1, x.shape[-1])  # (B, S, I)
        g = g.reshape(*g.shape[:2], -1, g.shape[-1])  # (C, B, S, O)
        return {"weight": Outer(a, g, bias="bias" if "bias" in operation.parameters else None)}


@rule_for(torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
class MatmulRule:
    """h = a W with W (I, O) on the right."""

    def bind(self, input: Tensor, other: Tensor) -> Operation | None:
        if other.dim() != 2 or input.dim() < 2:
            return None
        return Operation(input, {"weight": other}, any_axis=True)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        a = x.reshape(x.shape[0], -1, x.shape[-1])
        return {"weight": Outer(a, g.reshape(*g.shape[:2], -1, g.shape[-1]), input_major=True)}
