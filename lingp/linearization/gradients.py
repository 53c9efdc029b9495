"""Gradients of every output in the activations of a network, and what a graph depends on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def batched_gradients(f: Tensor, hs: Sequence[Tensor], create_graph: bool) -> list[Tensor]:
    """∂f_c/∂h for every output c at once: (C, *h.shape) for every h, by one mapped backward pass."""
    rows, outputs = f.shape
    if not hs or not f.requires_grad:
        return [h.new_zeros(outputs, *h.shape) for h in hs]
    if outputs == 1:
        ones = torch.ones_like(f)
        grads = torch.autograd.grad(f, hs, ones, create_graph=create_graph, allow_unused=True)
        return [_or_zeros(g, h).unsqueeze(0) for g, h in zip(grads, hs, strict=True)]
    basis = torch.eye(outputs, dtype=f.dtype, device=f.device).unsqueeze(1).expand(-1, rows, -1)
    try:
        grads = torch.autograd.grad(
            f,
            hs,
            basis,
            create_graph=create_graph,
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=True,
        )
    except RuntimeError:  # an operation that cannot be mapped: one output at a time
        singles = [
            torch.autograd.grad(
                f, hs, b, create_graph=create_graph, retain_graph=True, allow_unused=True
            )
            for b in basis
        ]
        return [
            torch.stack([_or_zeros(g, h) for g in per_output])
            for per_output, h in zip(zip(*singles, strict=True), hs, strict=True)
        ]
    return [
        h.new_zeros(outputs, *h.shape) if g is None else g for g, h in zip(grads, hs, strict=True)
    ]


def _or_zeros(g: Tensor | None, h: Tensor) -> Tensor:
    return torch.zeros_like(h) if g is None else g


def leaves(f: Tensor) -> list[Tensor]:
    """Tensors without history that `f` depends on and that require grad."""
    found, seen = [], set()
    waiting = [f.grad_fn] if f.grad_fn is not None else []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(parent for parent, _ in node.next_functions)
    return found
