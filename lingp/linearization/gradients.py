"""Gradients of every output in the activations of a network, and what a graph depends on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def output_gradients(
    f: Tensor, hs: Sequence[Tensor], create_graph: bool, mapped: bool = True
) -> list[Tensor]:
    """∂f_c/∂h for every output c: (C, *h.shape) for every h, by one mapped pass or by C."""
    rows, outputs = f.shape
    if not hs or not f.requires_grad:
        return [h.new_zeros(outputs, *h.shape) for h in hs]
    basis = torch.eye(outputs, dtype=f.dtype, device=f.device).unsqueeze(1).expand(-1, rows, -1)
    options = {"create_graph": create_graph, "retain_graph": True, "allow_unused": True}
    if mapped and outputs > 1:
        try:
            grads = torch.autograd.grad(f, hs, basis, is_grads_batched=True, **options)
        except RuntimeError:  # an operation that cannot be mapped
            return output_gradients(f, hs, create_graph, mapped=False)
        empty = [h.new_zeros(1, *h.shape).expand(outputs, *h.shape) for h in hs]
        return [z if g is None else g for g, z in zip(grads, empty, strict=True)]
    singles = [torch.autograd.grad(f, hs, b, **options) for b in basis]
    return [
        torch.stack([_or_zeros(g, h) for g in per_output])
        for per_output, h in zip(zip(*singles, strict=True), hs, strict=True)
    ]


def _or_zeros(g: Tensor | None, h: Tensor) -> Tensor:
    return torch.zeros_like(h) if g is None else g


def leaves(f: Tensor) -> list[Tensor]:
    """Tensors without history that `f` depends on and that require grad."""
    found, seen = [], set()
    waiting = [f.grad_fn] if f.grad_fn is not None else []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
    return found
