"""The Jacobian of a network at a batch of inputs, as the factors of its layers.

Whether a layer is kept as factors or written out depends on its number of positions, so that the
same network can give different blocks for, say, short and long sequences; `aligned` brings them to
the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lingp.linearization.blocks import Block, DenseBlock, OuterBlock, Slot
from lingp.runtime.plain import storable


@storable
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
        shape = self.num_data, self.num_outputs, self.num_parameters
        out = torch.zeros(shape, dtype=self.dtype, device=self.device)
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


def aligned(parts: Sequence[Factors], positions: bool = False) -> list[Factors]:
    """The same factors with the same kinds of blocks over the same columns, in the same order.

    Parameters of which the parts have different blocks are written out. With `positions`, blocks
    also get the same number of positions, the new ones empty.
    """
    kinds = [[_kind(block) for block in part.blocks] for part in parts]
    if any(k != kinds[0] for k in kinds):
        common = set(kinds[0]).intersection(*kinds[1:])
        different = {p for ks in kinds for k in ks if k not in common for p in _parameters(k)}
        while True:  # a block that shares a parameter with a different one is written out too
            sharing = [_parameters(k) for k in common if not different.isdisjoint(_parameters(k))]
            also = set().union(*sharing)
            if also <= different:
                break
            different |= also
        parts = [_written_out(part, different) for part in parts]
    if not positions:
        return list(parts)
    rows = [_equally_long(row) for row in zip(*(part.blocks for part in parts), strict=True)]
    return [replace(part, blocks=tuple(row[i] for row in rows)) for i, part in enumerate(parts)]


_Kind = tuple[type, tuple[Slot, ...], bool]


def _kind(block: Block) -> _Kind:
    return type(block), block.slots, isinstance(block, OuterBlock) and block.input_major


def _parameters(kind: _Kind) -> set[int]:
    return {slot.parameter for slot in kind[1]}


def _written_out(part: Factors, parameters: set[int]) -> Factors:
    """The same with the blocks of some parameters written out, after all others."""
    kept = [b for b in part.blocks if parameters.isdisjoint(_parameters(_kind(b)))]
    kept.sort(key=lambda b: b.slots[0].start)
    dense: dict[int, DenseBlock] = {}
    for i in sorted(parameters):
        whole = Slot(i, part.slices[i].start, part.slices[i].stop)
        zeros = part.tensors()[-1].new_zeros(part.num_data, part.num_outputs, whole.size)
        dense[i] = DenseBlock(zeros, whole)
    for block in part.blocks:
        for slot in block.slots:
            if slot.parameter in dense:
                start = dense[slot.parameter].slot.start
                inside = slice(slot.start - start, slot.stop - start)
                dense[slot.parameter].jacobian[..., inside] = block.columns(slot)
    return replace(part, blocks=(*kept, *dense.values()))


def _equally_long(blocks: Sequence[Block]) -> list[Block]:
    if isinstance(blocks[0], DenseBlock):
        return list(blocks)
    longest = max(b.tensors()[-1].shape[2] for b in blocks)

    def pad(block: Block) -> Block:
        *others, g = block.tensors()
        extra = longest - g.shape[2]
        # (N, S, I), or (N, S) for indices and their factors; g is (N, C, S, O)
        filled = [F.pad(t, (0, 0) * (t.dim() - 2) + (0, extra)) for t in others]
        return block.with_tensors([*filled, F.pad(g, (0, 0, 0, extra))]) if extra else block

    return [pad(b) for b in blocks]
