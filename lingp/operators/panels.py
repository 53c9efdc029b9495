"""Layers whose dense columns are multiplied: J Jᵀ, over panels of columns of bounded width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from lingp.linearization.blocks import Block, DenseBlock, LookupBlock, OuterBlock, Slot
from lingp.linearization.factors import Factors

_PANEL_BYTES = 1 << 23  # bytes of dense columns made at a time
_NARROW = 512  # fewer columns than this are joined with others before they are multiplied

Pairs = Sequence[tuple[Block, Block]]


def add_panels_(
    kernel: Tensor, pairs: Pairs, here: Factors, other: Factors, variances: Tensor
) -> None:
    """Add the layers' kernels; of a symmetric one (`other is here`) the lower triangle."""
    for slots, left, right in _panels(pairs, here, other):
        scales = variances[[slot.parameter for slot in slots]]
        if len(slots) == 1:
            _add_product_(kernel, left, right, other is here, alpha=float(scales))
        else:
            sizes = torch.tensor([slot.size for slot in slots], device=scales.device)
            spread = scales.repeat_interleave(sizes)
            _add_product_(kernel, left * spread, right, other is here)


def add_panel_gradients_(
    result: Tensor, grad: Tensor, pairs: Pairs, here: Factors, other: Factors
) -> None:
    """Add ⟨grad, J_l J'_lᵀ⟩ to the entry of every parameter tensor l of these layers."""
    for slots, left, right in _panels(pairs, here, other):
        by_column = ((grad @ right) * left).sum(0)
        for slot, part in zip(slots, by_column.split([s.size for s in slots]), strict=True):
            result[slot.parameter] += part.sum()


def _add_product_(
    kernel: Tensor, left: Tensor, right: Tensor, symmetric: bool, alpha: float = 1.0
) -> None:
    """`kernel += alpha left rightᵀ`, only the lower triangle of row blocks if symmetric."""
    if not symmetric:
        kernel.addmm_(left, right.T, alpha=alpha)
        return
    step = max(64, -(-len(left) // 8))
    for start in range(0, len(left), step):
        stop = min(start + step, len(left))
        kernel[start:stop, :stop].addmm_(left[start:stop], right[:stop].T, alpha=alpha)


def _panels(
    pairs: Pairs, here: Factors, other: Factors
) -> Iterator[tuple[list[Slot], Tensor, Tensor]]:
    """Dense columns with their slots, in panels of bounded width; narrow ones are joined."""
    same = other is here
    rows = here.shape[0] + (0 if same else other.shape[0])
    width = max(1, _PANEL_BYTES // (rows * here.dtype.itemsize))
    narrow: list[tuple[Slot, Tensor, Tensor]] = []
    for slot, left, right in _pieces(pairs, width, same):
        if slot.size >= min(width, _NARROW):
            yield [slot], left, right
            continue
        if sum(s.size for s, _, _ in narrow) + slot.size > width:
            yield _joined(narrow, same)
            narrow = []
        narrow.append((slot, left, right))
    if narrow:
        yield _joined(narrow, same)


def _joined(
    pieces: Sequence[tuple[Slot, Tensor, Tensor]], same: bool
) -> tuple[list[Slot], Tensor, Tensor]:
    slots, left, right = zip(*pieces, strict=True)
    panel = torch.cat(left, 1)
    return list(slots), panel, panel if same else torch.cat(right, 1)


def _pieces(pairs: Pairs, width: int, same: bool) -> Iterator[tuple[Slot, Tensor, Tensor]]:
    """Columns (N·C, w) of both sides, about `width` at a time, with the slot they belong to."""
    for a, b in pairs:
        for slot, make in _column_makers(a, b, width):
            left = make(a)
            yield slot, left, left if same else make(b)


_Maker = Callable[[Block], Tensor]


def _column_makers(a: Block, b: Block, width: int) -> Iterator[tuple[Slot, _Maker]]:
    if isinstance(a, OuterBlock):
        yield from _weight_makers(a, width)
        if a.bias is not None:
            yield a.bias, lambda block, slot=a.bias: block.columns(slot).flatten(0, 1)
    elif isinstance(a, LookupBlock) and isinstance(b, LookupBlock):
        read = torch.unique(torch.cat([a.index.reshape(-1), b.index.reshape(-1)]))
        step = max(1, width // a.fan_out)
        for start in range(0, len(read), step):
            rows = read[start : start + step]
            slot = Slot(a.weight.parameter, 0, len(rows) * a.fan_out)
            yield slot, lambda block, rows=rows: _lookup_columns(block, rows)
    elif isinstance(a, DenseBlock):
        for start in range(0, a.slot.size, width):
            stop = min(start + width, a.slot.size)
            slot = Slot(a.slot.parameter, a.slot.start + start, a.slot.start + stop)
            part = slice(start, stop)
            yield slot, lambda block, part=part: _dense_columns(block, part)


def _weight_makers(block: OuterBlock, width: int) -> Iterator[tuple[Slot, _Maker]]:
    step = max(1, width // block.fan_in)
    for start in range(0, block.fan_out, step):
        outputs = slice(start, min(start + step, block.fan_out))
        size = (outputs.stop - outputs.start) * block.fan_in
        slot = Slot(block.weight.parameter, 0, size)
        yield slot, lambda b, outputs=outputs: b.weight_columns(outputs).flatten(2).flatten(0, 1)


def _dense_columns(block: Block, part: slice) -> Tensor:
    assert isinstance(block, DenseBlock)
    return block.jacobian[..., part].flatten(0, 1)


def _lookup_columns(block: Block, rows: Tensor) -> Tensor:
    assert isinstance(block, LookupBlock)
    return block.compressed(rows).flatten(0, 1)
