"""Mᵀ M and the triangular factor of M = [rows of many blocks], one block in memory at a time.

    gram       H = S + Σ_i M_iᵀ M_i
    triangle   T upper, Tᵀ T = Sᵀ S + Σ_i M_iᵀ M_i, from QR of the stacked blocks

Both are differentiable in the tensors that the blocks are made from. The backward pass makes each
block again, so that memory stays that of one block and of the result. The triangle never forms the
squared matrix: what rounding does to it goes with the square root of its condition number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lingp.linalg.first_order import first_order
from lingp.linalg.triangles import add_product_

MakeBlocks = Callable[..., Iterator[Tensor]]
"""Given the input tensors, yields the blocks M_i (any number of rows x n)."""


def streamed_gram(blocks: MakeBlocks, start: Tensor, *inputs: Tensor) -> Tensor:
    """start + Σ_i M_iᵀ M_i, (n x n), differentiable in `inputs`."""
    return _Gram.apply(blocks, start, *inputs)


def streamed_triangle(blocks: MakeBlocks, start: Tensor, *inputs: Tensor) -> Tensor:
    """Upper triangular T with positive diagonal, Tᵀ T = startᵀ start + Σ_i M_iᵀ M_i.

    Parameters
    ----------
    blocks
        See `MakeBlocks`.
    start
        (n x n), upper triangular.
    inputs
        Tensors that the blocks are differentiable functions of.
    """
    return _Triangle.apply(blocks, start, *inputs)


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: MakeBlocks, start: Tensor, *inputs: Tensor) -> Tensor:
        ctx.blocks = blocks
        ctx.save_for_backward(*inputs)
        total = start.clone()
        for block in blocks(*inputs):
            add_product_(total, block.mT, block.mT, symmetric=True)
        return total.tril_() + total.tril(-1).mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        def compute() -> list[Tensor | None]:
            twice = grad + grad.mT
            return pull_back(ctx, lambda block: block @ twice)

        return (None, None, *first_order(compute, grad, *ctx.saved_tensors))


class _Triangle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: MakeBlocks, start: Tensor, *inputs: Tensor) -> Tensor:
        triangle, waiting = start, []
        size, rows = start.shape[0], 0
        for block in blocks(*inputs):
            waiting.append(block)
            rows += block.shape[0]
            if rows >= size:  # one factorisation per n rows, not one per small block
                triangle, waiting, rows = _absorb(triangle, waiting), [], 0
        if waiting:
            triangle = _absorb(triangle, waiting)
        triangle = triangle * triangle.diagonal().sign().unsqueeze(-1)
        ctx.blocks = blocks
        ctx.save_for_backward(triangle, *inputs)
        return triangle

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        # dT = U(T⁻ᵀ dB T⁻¹) T with B = Tᵀ T, U: upper triangle with half the diagonal, so that
        # the gradient in a block is 2 M T⁻¹ Y T⁻ᵀ with Y = sym U(grad Tᵀ).
        triangle = ctx.saved_tensors[0].detach()

        def compute() -> list[Tensor | None]:
            y = (grad @ triangle.mT).triu()
            y.diagonal().mul_(0.5)
            y = 0.5 * (y + y.mT)

            def block_gradient(block: Tensor) -> Tensor:
                q = torch.linalg.solve_triangular(triangle, block, upper=True, left=False)
                half = torch.linalg.solve_triangular(triangle.mT, q @ y, upper=False, left=False)
                return 2 * half

            return pull_back(ctx, block_gradient, skip=1)

        return (None, None, *first_order(compute, grad, *ctx.saved_tensors[1:]))


def _absorb(triangle: Tensor, blocks: list[Tensor]) -> Tensor:
    """The triangle of the rows so far and some more."""
    return torch.linalg.qr(torch.cat([triangle, *blocks]), mode="r").R


def pull_back(
    ctx: Any, block_gradient: Callable[[Tensor], Tensor], skip: int = 0
) -> list[Tensor | None]:
    """Gradients of the inputs, summed over blocks that are made again one by one."""
    leaves = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors[skip:]]
    needed = [leaf for leaf in leaves if leaf.requires_grad]
    totals = [torch.zeros_like(leaf) for leaf in needed]
    with torch.enable_grad():
        for block in ctx.blocks(*leaves):
            with torch.no_grad():
                gradient = block_gradient(block.detach())
            if not needed:
                continue
            # retained: what is the same for all blocks has one graph
            parts = torch.autograd.grad(
                block, needed, gradient, retain_graph=True, allow_unused=True
            )
            for total, part in zip(totals, parts, strict=True):
                if part is not None:
                    total += part
    gradients = iter(totals)
    return [next(gradients) if leaf.requires_grad else None for leaf in leaves]
