"""Factors of one network from inputs of different shapes, brought to the same blocks.

Whether a layer is kept as factors or written out depends on its number of positions, so that the
same network can give different blocks for, say, short and long sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch.nn import functional as F

from lingp.linearization.blocks import Block, DenseBlock, Slot

if TYPE_CHECKING:
    from lingp.linearization.factors import Factors


def aligned(parts: Sequence[Factors], positions: bool = False) -> list[Factors]:
    """The same factors with the same kinds of blocks over the same columns, in the same order.

    Parameters of which the parts have different blocks are written out. With `positions`, blocks
    also get the same number of positions, the new ones empty.
    """
    parts = _same_blocks(parts)
    return _same_positions(parts) if positions else parts


def _same_blocks(parts: Sequence[Factors]) -> list[Factors]:
    kinds = [[_kind(block) for block in part.blocks] for part in parts]
    if all(k == kinds[0] for k in kinds):
        return list(parts)
    common = set(kinds[0]).intersection(*kinds[1:])
    different = {s.parameter for ks in kinds for k in ks if k not in common for s in k[1]}
    while True:  # a block that shares a parameter with a different one is written out too
        also = {s.parameter for k in common for s in k[1] if _touches(k, different)} - different
        if not also:
            break
        different |= also
    return [_rewritten(part, different) for part in parts]


_Kind = tuple[type, tuple[Slot, ...], bool]


def _kind(block: Block) -> _Kind:
    return type(block), block.slots, getattr(block, "input_major", False)


def _touches(kind: _Kind, parameters: set[int]) -> bool:
    return any(slot.parameter in parameters for slot in kind[1])


def _rewritten(part: Factors, parameters: set[int]) -> Factors:
    kept = [b for b in part.blocks if not _touches(_kind(b), parameters)]
    kept.sort(key=lambda b: b.slots[0].start)
    dense: dict[int, DenseBlock] = {}
    for i in sorted(parameters):
        columns = part.slices[i]
        zeros = part.tensors()[-1].new_zeros(
            part.num_data, part.num_outputs, columns.stop - columns.start
        )
        dense[i] = DenseBlock(zeros, Slot(i, columns.start, columns.stop))
    for block in part.blocks:
        for slot in block.slots:
            if slot.parameter in dense:
                start = dense[slot.parameter].slot.start
                inside = slice(slot.start - start, slot.stop - start)
                dense[slot.parameter].jacobian[..., inside] = block.columns(slot)
    return replace(part, blocks=(*kept, *dense.values()))


def _same_positions(parts: Sequence[Factors]) -> list[Factors]:
    rows = zip(*(part.blocks for part in parts), strict=True)
    equal = [_equally_long(blocks) for blocks in rows]
    return [
        replace(part, blocks=tuple(blocks[i] for blocks in equal)) for i, part in enumerate(parts)
    ]


def _equally_long(blocks: Sequence[Block]) -> list[Block]:
    if isinstance(blocks[0], DenseBlock) or len({b.tensors()[-1].shape[2] for b in blocks}) == 1:
        return list(blocks)
    longest = max(b.tensors()[-1].shape[2] for b in blocks)

    def pad(block: Block) -> Block:
        *others, g = block.tensors()
        extra = longest - g.shape[2]
        # (N, S, I), or (N, S) for indices and their factors; g is (N, C, S, O)
        filled = [F.pad(t, (0, 0) * (t.dim() - 2) + (0, extra)) for t in others]
        return block.with_tensors([*filled, F.pad(g, (0, 0, 0, extra))])

    return [pad(b) for b in blocks]
