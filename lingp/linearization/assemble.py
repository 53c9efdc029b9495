"""From recorded calls and their gradients to Jacobian blocks.

A parameter used several times (a module called twice, tied weights) gets the sum of its uses: uses
of the same kind become further positions of one block, others are written out and added.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lingp.linearization.blocks import Block, DenseBlock, LookupBlock, OuterBlock, Slot
from lingp.linearization.rules.base import Dense, Outer, Piece


@dataclass(frozen=True)
class Use:
    """One use of a parameter (or of part of it) by one call, with rows = examples.

    `whole` are all columns of the parameter; an `OuterBlock` may carry a bias along.
    """

    block: Block
    whole: Slot
    bias_whole: Slot | None = None


def slot_of(t: Tensor, whole: Slot, base: Tensor) -> Slot | None:
    """Columns of `t`, the parameter `base` or consecutive entries of it; None for other views."""
    if not (t.is_contiguous() and base.is_contiguous()):
        return None
    start = whole.start + int(t.storage_offset()) - int(base.storage_offset())
    return Slot(whole.parameter, start, start + t.numel())


def uses_of_call(
    pieces: Mapping[str, Piece],
    slots: Mapping[str, tuple[Slot, Slot]],
    num_data: int,
) -> Iterable[Use]:
    """Blocks of one call. `slots` gives (columns, columns of the whole parameter) by role."""
    for role, piece in pieces.items():
        if isinstance(piece, Outer):
            bias, bias_whole = slots.get(piece.bias or "", (None, None))
            g = _gradients(piece.g, num_data)
            if role in slots:
                slot, whole = slots[role]
                a = _fold(piece.a, num_data)
                yield Use(
                    OuterBlock(a, _shared(g), slot, bias, piece.input_major), whole, bias_whole
                )
            elif bias is not None and bias_whole is not None:
                yield Use(DenseBlock(g.sum(2), bias), bias_whole)
        elif role in slots:
            slot, whole = slots[role]
            if isinstance(piece, Dense):
                jacobian = piece.jacobian.reshape(*piece.jacobian.shape[:2], -1)
                jacobian = _gradients(jacobian, num_data, folded=False)
                yield Use(DenseBlock(jacobian, slot), whole)
            else:
                index, scale = (_fold(t, num_data) for t in (piece.index, piece.scale))
                yield Use(LookupBlock(index, scale, _gradients(piece.g, num_data), slot), whole)


def merge(uses: Iterable[Use]) -> list[Block]:
    """Blocks in which every column occurs once."""
    by_parameter: dict[int, list[Use]] = defaultdict(list)
    for use in _detach_shared_biases(list(uses)):
        by_parameter[use.whole.parameter].append(use)
    blocks = [
        b for parameter in sorted(by_parameter) for b in _merge_parameter(by_parameter[parameter])
    ]
    return [part for block in blocks for part in _smaller(block)]


def _detach_shared_biases(uses: list[Use]) -> list[Use]:
    """Give a bias blocks of its own unless it is used always, and only, with one weight."""
    partners: dict[int, set[int]] = defaultdict(set)  # bias parameter -> weight parameters
    blocks: dict[int, list[Block]] = defaultdict(list)  # parameter -> all its blocks
    for use in uses:
        blocks[use.whole.parameter].append(use.block)
        if use.bias_whole is not None:
            partners[use.bias_whole.parameter].add(use.whole.parameter)

    def stays(use: Use) -> bool:
        assert use.bias_whole is not None
        mine = blocks[use.whole.parameter]
        alone = (
            len(partners[use.bias_whole.parameter]) == 1 and not blocks[use.bias_whole.parameter]
        )
        return alone and (all(b.slots == mine[0].slots for b in mine) or _disjoint(mine))

    result = []
    for use in uses:
        block = use.block
        if use.bias_whole is None or stays(use):
            result.append(use)
            continue
        assert isinstance(block, OuterBlock) and block.bias is not None
        bias = block.columns(block.bias)
        result.append(Use(replace(block, bias=None), use.whole))
        result.append(Use(DenseBlock(bias, block.bias), use.bias_whole))
    return result


def _fold(t: Tensor, num_data: int) -> Tensor:
    """(B, S, ...) with B = N·R to (N, R·S, ...)."""
    return t if len(t) == num_data else t.unflatten(0, (num_data, -1)).flatten(1, 2)


def _gradients(g: Tensor, num_data: int, folded: bool = True) -> Tensor:
    """(C, B, S, ...), B = N·R, to (N, C, R·S, ...), contiguous; or (C, B, p) to (N, C, p)."""
    outputs = len(g)
    if g.shape[1] == num_data:
        g = g.transpose(0, 1)
        # Convolutions give (O, S) in memory; the copy keeps that, and so moves whole runs.
        return g.mT.contiguous().mT if g.stride(-1) > g.stride(-2) else g.contiguous()
    g = g.unflatten(1, (num_data, -1)).transpose(0, 1)  # (N, C, R, S, ...)
    return g.reshape(num_data, outputs, -1, *g.shape[4:]) if folded else g.sum(2)


def _shared(g: Tensor) -> Tensor:
    """Keep one example's gradients if all are the same, as in the last layer of most networks."""
    if len(g) < 2 or g.requires_grad or not torch.equal(g[0], g[-1]):
        return g
    return g[:1].clone() if bool((g == g[:1]).all()) else g


def _merge_parameter(uses: list[Use]) -> list[Block]:
    blocks = [use.block for use in uses]
    if len(blocks) == 1 or _disjoint(blocks):
        return blocks
    first = blocks[0]
    if all(type(b) is type(first) and b.slots == first.slots for b in blocks):
        if isinstance(first, DenseBlock):
            return [first.with_tensors([sum(b.tensors()[0] for b in blocks)])]  # type: ignore[list-item]
        if isinstance(first, LookupBlock):
            index, scale, g = zip(*(b.tensors() for b in blocks), strict=True)
            return [first.with_tensors([torch.cat(index, 1), torch.cat(scale, 1), torch.cat(g, 2)])]
        outers = [b for b in blocks if isinstance(b, OuterBlock)]
        if all(b.input_major == outers[0].input_major for b in outers):
            g_all = [b.every_g() for b in outers]
            return [first.with_tensors([torch.cat([b.a for b in outers], 1), torch.cat(g_all, 2)])]
    whole = uses[0].whole
    total = first.tensors()[-1].new_zeros(first.num_data, first.num_outputs, whole.size)
    for block in blocks:
        slot = block.slots[0]
        total[..., slot.start - whole.start : slot.stop - whole.start] += block.columns(slot)
    return [DenseBlock(total, whole)]


def _disjoint(blocks: list[Block]) -> bool:
    spans = sorted((slot.start, slot.stop) for block in blocks for slot in block.slots)
    return all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


def _smaller(block: Block) -> list[Block]:
    """Write a block's columns out where that takes less memory than its factors (small filters)."""
    if not isinstance(block, OuterBlock) or block.num_positions == 1:
        return [block]
    fan_in, fan_out, positions = block.fan_in, block.fan_out, block.num_positions
    outputs = block.num_outputs
    if outputs * fan_out * (fan_in + 1) >= positions * (fan_in + outputs * fan_out):
        return [block]
    return [DenseBlock(block.columns(slot), slot) for slot in block.slots]
