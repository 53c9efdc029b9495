"""Linear maps: h = a Wᵀ + b, over any leading axes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lingp.linearization.rules.base import Dense, Operation, Outer, Piece, rule_for


@rule_for(F.linear)
class LinearRule:
    """∂f/∂W = Σ_s g_s a_sᵀ and ∂f/∂b = Σ_s g_s, s over all axes but the examples'."""

    def bind(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Operation | None:
        if weight.dim() != 2:
            return None
        parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return Operation(input, parameters, axes=None)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        a = x.reshape(x.shape[0], -1, x.shape[-1])  # (B, S, I)
        g = g.reshape(*g.shape[:2], -1, g.shape[-1])  # (C, B, S, O)
        return {"weight": Outer(a, g, bias="bias" if "bias" in operation.parameters else None)}


@rule_for(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
class MatmulRule:
    """h = a W with W (I, O) on the right."""

    def bind(self, input: Tensor, other: Tensor) -> Operation | None:
        if other.dim() != 2 or input.dim() < 2:
            return None
        return Operation(input, {"weight": other}, axes=None)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        a = x.reshape(x.shape[0], -1, x.shape[-1])
        return {"weight": Outer(a, g.reshape(*g.shape[:2], -1, g.shape[-1]), input_major=True)}


@rule_for(torch.addmm, Tensor.addmm)
class AddmmRule:
    """h = b + a W with W (I, O) on the right."""

    def bind(
        self, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Operation | None:
        if beta != 1 or alpha != 1:
            return None
        bias = {"bias": input} if input.numel() == mat2.shape[1] else {}
        return Operation(mat1, {"weight": mat2, **bias})

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        g = g.unsqueeze(2)
        pieces: dict[str, Piece] = {"weight": Outer(x.unsqueeze(1), g, input_major=True)}
        if "bias" in operation.parameters:
            shape = operation.parameters["bias"].shape
            pieces["bias"] = Dense(g.sum(2).unflatten(2, shape))
        return pieces


@rule_for(F.bilinear)
class BilinearRule:
    """h_o = xᵀ W_o y + b_o: linear in the products of the two inputs' entries."""

    def bind(
        self, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Operation:
        parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return Operation(input1, parameters, axes=None, aligned={"input2": input2})

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        products = (x.unsqueeze(-1) * operation.aligned["input2"].unsqueeze(-2)).flatten(-2)
        a = products.reshape(x.shape[0], -1, products.shape[-1])
        g = g.reshape(*g.shape[:2], -1, g.shape[-1])
        return {"weight": Outer(a, g, bias="bias" if "bias" in operation.parameters else None)}
