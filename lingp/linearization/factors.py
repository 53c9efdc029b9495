"""The Jacobian of a network at a batch of inputs, as the factors of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lingp.linearization.align import aligned
from lingp.linearization.blocks import Block, OuterBlock


@dataclass(frozen=True)
class Factors:
    """The Jacobian J (N·C x P) as one block per layer, never written out unless asked.

    Attributes
    ----------
    blocks : the layers' columns; every column belongs to at most one block, those of none are zero.
    num_data, num_outputs : N and C. Rows are data-major: row `n·C + c`.
    slices : the columns of each parameter tensor, in order; they tile `0..P`.
    dtype, device : of every product.
    """

    blocks: tuple[Block, ...]
    num_data: int
    num_outputs: int
    slices: tuple[slice, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def num_parameters(self) -> int:
        return self.slices[-1].stop if self.slices else 0

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.num_data * self.num_outputs, self.num_parameters))

    @property
    def nbytes(self) -> int:
        """Bytes held by the factors."""
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of all blocks, in an order `with_tensors` understands."""
        return tuple(t for block in self.blocks for t in block.tensors())

    def with_tensors(self, tensors: Sequence[Tensor]) -> Factors:
        """The same factors over other tensors (converted, detached, moved)."""
        blocks, start = [], 0
        for block in self.blocks:
            stop = start + len(block.tensors())
            blocks.append(block.with_tensors(tensors[start:stop]))
            start = stop
        if not blocks:
            return self
        changed = next(t for block in blocks for t in block.tensors() if t.is_floating_point())
        num_data = blocks[0].num_data
        return replace(
            self,
            blocks=tuple(blocks),
            num_data=num_data,
            dtype=changed.dtype,
            device=changed.device,
        )

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Factors:
        """Factors in another dtype (integer tensors keep theirs) or on another device."""

        def move(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else None)

        moved = self.with_tensors([move(t) for t in self.tensors()])
        return replace(moved, dtype=dtype or self.dtype, device=torch.device(device or self.device))

    def rows(self, index: slice | Tensor) -> Factors:
        """The factors of some of the examples (not of single outputs)."""
        num_data = len(range(self.num_data)[index]) if isinstance(index, slice) else None
        if num_data is None:
            index = torch.as_tensor(index, device=self.device)
            num_data = int(index.sum()) if index.dtype == torch.bool else len(index)
        return replace(self, blocks=tuple(b.rows(index) for b in self.blocks), num_data=num_data)

    @staticmethod
    def cat(parts: Sequence[Factors]) -> Factors:
        """Stack the rows of several batches of the same network."""
        if len(parts) == 1:
            return parts[0]
        parts = aligned(parts, positions=True)
        blocks = tuple(
            _cat_blocks(blocks) for blocks in zip(*(p.blocks for p in parts), strict=True)
        )
        return replace(parts[0], blocks=blocks, num_data=sum(p.num_data for p in parts))

    def jacobian(self) -> Tensor:
        """The dense Jacobian, (N, C, P)."""
        out = torch.zeros(
            self.num_data,
            self.num_outputs,
            self.num_parameters,
            dtype=self.dtype,
            device=self.device,
        )
        for block in self.blocks:
            for slot in block.slots:
                out[..., slot.columns] = block.columns(slot)
        return out

    def matmul(self, v: Tensor) -> Tensor:
        """J v: (P, K) to (N, C, K)."""
        out = v.new_zeros(self.num_data, self.num_outputs, v.shape[1])
        v = v.contiguous()
        for block in self.blocks:
            block.add_matmul_(out, v)
        return out

    def t_matmul(self, u: Tensor) -> Tensor:
        """Jᵀ u: (N, C, K) to (P, K)."""
        out = u.new_zeros(self.num_parameters, u.shape[2])
        for block in self.blocks:
            block.add_t_matmul_(out, u)
        return out


def _cat_blocks(blocks: Sequence[Block]) -> Block:
    first = blocks[0]
    if isinstance(first, OuterBlock):
        outers = [b for b in blocks if isinstance(b, OuterBlock)]
        a = torch.cat([b.a for b in outers])
        if all(len(b.g) == 1 and torch.equal(b.g, outers[0].g) for b in outers):
            return first.with_tensors([a, outers[0].g])
        return first.with_tensors([a, torch.cat([b.every_g() for b in outers])])
    return first.with_tensors(
        [torch.cat(ts) for ts in zip(*(b.tensors() for b in blocks), strict=True)]
    )
