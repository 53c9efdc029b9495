"""Embeddings: each position reads one row of a table."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lingp.linearization.rules.base import Lookup, Operation, Piece, rule_for


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
        padding = padding_idx if padding_idx is None else padding_idx % len(weight)
        return Operation(input, {"weight": weight}, {"padding_idx": padding}, axes=None)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        index = x.reshape(x.shape[0], -1).long()
        g = g.reshape(*g.shape[:2], index.shape[1], g.shape[-1])
        padding = operation.options["padding_idx"]
        read = (
            torch.ones_like(index, dtype=g.dtype) if padding is None else (index != padding).to(g)
        )
        return {"weight": Lookup(index, read, g)}


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
        padding = padding_idx if padding_idx is None else padding_idx % len(weight)
        aligned = {} if per_sample_weights is None else {"scale": per_sample_weights}
        options = {"mode": mode, "padding_idx": padding}
        return Operation(input, {"weight": weight}, options, aligned=aligned)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        index, padding = x.long(), operation.options["padding_idx"]
        scale = operation.aligned.get("scale", torch.ones_like(index, dtype=g.dtype))
        if padding is not None:
            scale = scale * (index != padding)
        if operation.options["mode"] == "mean":
            scale = scale / scale.sum(1, keepdim=True).clamp(min=1)
        return {"weight": Lookup(index, scale, g.unsqueeze(2).expand(-1, -1, index.shape[1], -1))}
