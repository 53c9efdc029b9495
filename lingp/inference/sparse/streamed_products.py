"""M E and Mᵀ U for M = [rows of many blocks], one block in memory at a time.

Both are differentiable in their factor and in the tensors that the blocks are made from, as the
results of `lingp.linalg.streaming` are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lingp.linalg.first_order import first_order
from lingp.linalg.streaming import MakeBlocks, pull_back


def streamed_matmul(blocks: MakeBlocks, num_rows: int, right: Tensor, *inputs: Tensor) -> Tensor:
    """[M_i E]_i: (n x S) -> (num_rows x S), differentiable in E and `inputs`."""
    return _Matmul.apply(blocks, num_rows, right, *inputs)


def streamed_t_matmul(blocks: MakeBlocks, left: Tensor, *inputs: Tensor) -> Tensor:
    """Σ_i M_iᵀ U_i: (rows x S) -> (n x S), differentiable in U and `inputs`."""
    return _TransposedMatmul.apply(blocks, left, *inputs)


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, blocks: MakeBlocks, num_rows: int, right: Tensor, *inputs: Tensor
    ) -> Tensor:
        ctx.blocks = blocks
        ctx.save_for_backward(right, *inputs)
        # in place: pieces kept between large temporaries would fragment the heap
        out, start = right.new_empty(num_rows, right.shape[1]), 0
        for block in blocks(*inputs):
            torch.mm(block, right, out=out[start : start + len(block)])
            start += len(block)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        right = ctx.saved_tensors[0].detach()

        def compute() -> list[Tensor | None]:
            by_right, start = torch.zeros_like(right), 0

            def block_gradient(block: Tensor) -> Tensor:
                nonlocal start
                part = grad[start : start + len(block)]
                start += len(block)
                by_right.addmm_(block.mT, part)
                return part @ right.mT

            by_inputs = pull_back(ctx, block_gradient, skip=1)
            return [by_right, *by_inputs]

        return (None, None, *first_order(compute, grad, *ctx.saved_tensors))


class _TransposedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: MakeBlocks, left: Tensor, *inputs: Tensor) -> Tensor:
        ctx.blocks = blocks
        ctx.save_for_backward(left, *inputs)
        total, start = None, 0
        for block in blocks(*inputs):
            part = block.mT @ left[start : start + len(block)]
            total = part if total is None else total.add_(part)
            start += len(block)
        assert total is not None
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        left = ctx.saved_tensors[0].detach()

        def compute() -> list[Tensor | None]:
            by_left: list[Tensor] = []
            start = 0

            def block_gradient(block: Tensor) -> Tensor:
                nonlocal start
                part = left[start : start + len(block)]
                start += len(block)
                by_left.append(block @ grad)
                return part @ grad.mT

            by_inputs = pull_back(ctx, block_gradient, skip=1)
            return [torch.cat(by_left), *by_inputs]

        return (None, *first_order(compute, grad, *ctx.saved_tensors))
