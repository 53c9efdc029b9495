"""Linear maps, h = a Wᵀ + b over any leading axes, and tables, of which positions read rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lingp.linearization.rules.base import Lookup, Operation, Outer, Piece, present, rule_for


def _outer(
    operation: Operation, a: Tensor, g: Tensor, input_major: bool = False
) -> dict[str, Piece]:
    """∂f/∂W = Σ_s g_s a_sᵀ and ∂f/∂b = Σ_s g_s, s over all axes but the examples'."""
    a = a.reshape(a.shape[0], -1, a.shape[-1])  # (B, S, I)
    g = g.reshape(*g.shape[:2], -1, g.shape[-1])  # (C, B, S, O)
    bias = "bias" if "bias" in operation.parameters else None
    return {"weight": Outer(a, g, input_major, bias)}


@rule_for(F.linear)
class LinearRule:
    """h = a Wᵀ + b."""

    def bind(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Operation | None:
        if weight.dim() != 2:
            return None
        return Operation(input, present(weight=weight, bias=bias), axes=None)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        return _outer(operation, x, g)


@rule_for(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
class MatmulRule:
    """h = a W with W (I, O) on the right."""

    def bind(self, input: Tensor, other: Tensor) -> Operation | None:
        if other.dim() != 2 or input.dim() < 2:
            return None
        return Operation(input, {"weight": other}, axes=None)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        return _outer(operation, x, g, input_major=True)


@rule_for(torch.addmm, Tensor.addmm)
class AddmmRule:
    """h = b + a W with W (I, O) on the right."""

    def bind(
        self, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Operation | None:
        if beta != 1 or alpha != 1:
            return None
        bias = input if input.numel() == mat2.shape[1] else None
        return Operation(mat1, present(weight=mat2, bias=bias))

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        return _outer(operation, x, g, input_major=True)


@rule_for(F.bilinear)
class BilinearRule:
    """h_o = xᵀ W_o y + b_o: linear in the products of the two inputs' entries."""

    def bind(
        self, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Operation:
        parameters = present(weight=weight, bias=bias)
        return Operation(input1, parameters, axes=None, aligned={"input2": input2})

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        products = x.unsqueeze(-1) * operation.aligned["input2"].unsqueeze(-2)
        return _outer(operation, products.flatten(-2), g)


def _read(index: Tensor, operation: Operation) -> Tensor:
    """The places that read a row with a gradient; in torch, the row of padding has none."""
    padding = operation.options["padding_idx"]
    if padding is None:
        return torch.ones_like(index, dtype=torch.bool)
    return index != padding % len(operation.parameters["weight"])


@rule_for(F.embedding)
class EmbeddingRule:
    """∂f/∂W[v] = Σ_s 1[index_s = v] g_s; the padding row has no gradient, as in torch."""

    def bind(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Operation | None:
        if max_norm is not None:  # the table then depends on which rows are read
            return None
        return Operation(input, {"weight": weight}, {"padding_idx": padding_idx}, axes=None)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        index = x.reshape(x.shape[0], -1).long()
        g = g.reshape(*g.shape[:2], index.shape[1], g.shape[-1])
        return {"weight": Lookup(index, _read(index, operation).to(g), g)}


@rule_for(F.embedding_bag)
class EmbeddingBagRule:
    """Bags given as rows (B, S), summed or averaged, with or without per-sample weights."""

    def bind(
        self,
        input: Tensor,
        weight: Tensor,
        offsets: Tensor | None = None,
        max_norm: float | None = None,
        norm_type: float = 2,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        per_sample_weights: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Operation | None:
        if max_norm is not None or mode == "max" or input.dim() != 2:
            return None
        aligned = {} if per_sample_weights is None else {"scale": per_sample_weights}
        options = {"mode": mode, "padding_idx": padding_idx}
        return Operation(input, {"weight": weight}, options, aligned=aligned)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        index = x.long()
        scale = operation.aligned.get("scale", g.new_ones(())) * _read(index, operation)
        if operation.options["mode"] == "mean":
            scale = scale / scale.sum(1, keepdim=True).clamp(min=1)
        return {"weight": Lookup(index, scale, g.unsqueeze(2).expand(-1, -1, index.shape[1], -1))}
