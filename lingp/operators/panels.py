"""Layers whose dense columns are multiplied: J Jᵀ, over panels of columns of bounded width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lingp.linalg.triangles import add_product_
from lingp.linearization.blocks import Block, DenseBlock, LookupBlock, OuterBlock, Slot
from lingp.linearization.factors import Factors

_PANEL_BYTES = 1 << 23  # bytes of dense columns made at a time
_NARROW = 512  # fewer columns than this are joined with others before they are multiplied

Pairs = Sequence[tuple[Block, Block]]


def add_panels_(
    kernel: Tensor,
    pairs: Pairs,
    here: Factors,
    other: Factors,
    variances: Tensor,
    per_weight: bool = False,
) -> None:
    """Add the layers' kernels; of a symmetric one (`other is here`) the lower triangle.

    `variances` are those of parameter tensors (L,), or of weights (P,) with `per_weight`.
    """
    for owners, left, right in _panels(pairs, here, other):
        if per_weight:
            spread = torch.cat([variances[o.columns] for o in owners])
        elif len(owners) == 1:
            alpha = float(variances[owners[0].parameter])
            add_product_(kernel, left, right, other is here, alpha)
            continue
        else:
            spread = torch.cat([variances[o.parameter].expand(o.width) for o in owners])
        add_product_(kernel, left * spread, right, other is here)


def add_panel_gradients_(
    result: Tensor,
    grad: Tensor,
    pairs: Pairs,
    here: Factors,
    other: Factors,
    per_weight: bool = False,
) -> None:
    """Add ⟨grad, J_l J'_lᵀ⟩ to the entry of every parameter tensor l of these layers.

    With `per_weight` to the entries of their weights, of which there are P.
    """
    for owners, left, right in _panels(pairs, here, other):
        by_column = ((grad @ right) * left).sum(0)
        for owner, part in zip(owners, by_column.split([o.width for o in owners]), strict=True):
            if per_weight:
                result[owner.columns] += part
            else:
                result[owner.parameter] += part.sum()


@dataclass(frozen=True)
class _Owner:
    """The columns that a piece holds: `width` of those of parameter tensor `parameter`."""

    parameter: int
    columns: slice | Tensor
    width: int


_Columns = tuple[_Owner, Tensor, Tensor]


def _panels(
    pairs: Pairs, here: Factors, other: Factors
) -> Iterator[tuple[list[_Owner], Tensor, Tensor]]:
    """Dense columns and their owners, in panels of bounded width; narrow ones are joined."""
    same = other is here
    rows = here.shape[0] + (0 if same else other.shape[0])
    width = max(1, _PANEL_BYTES // (rows * here.dtype.itemsize))
    narrow: list[_Columns] = []
    for piece in _pieces(pairs, width, same):
        owner, left, right = piece
        if owner.width >= min(width, _NARROW):
            yield [owner], left, right
            continue
        if sum(o.width for o, _, _ in narrow) + owner.width > width:
            yield _joined(narrow, same)
            narrow = []
        narrow.append(piece)
    if narrow:
        yield _joined(narrow, same)


def _joined(pieces: Sequence[_Columns], same: bool) -> tuple[list[_Owner], Tensor, Tensor]:
    owners, left, right = zip(*pieces, strict=True)
    panel = torch.cat(left, 1)
    return list(owners), panel, panel if same else torch.cat(right, 1)


def _pieces(pairs: Pairs, width: int, same: bool) -> Iterator[_Columns]:
    """Columns of both sides, (N·C, w) and (M·C, w), about `width` at a time."""
    for a, b in pairs:
        for slot, place, columns in _pieces_of(a, b, width):
            left = columns(a).flatten(0, 1)
            right = left if same else columns(b).flatten(0, 1)
            yield _Owner(slot.parameter, place, left.shape[1]), left, right


def _pieces_of(
    a: Any, b: Any, width: int
) -> Iterator[tuple[Slot, slice | Tensor, Callable[[Any], Tensor]]]:
    """Pieces of a block's columns: where they are in J, and what makes them, (N, C, w)."""
    if isinstance(a, OuterBlock):
        for outputs in _ranges(a.fan_out, width // a.fan_in):
            place = _weight_place(a, outputs)
            yield a.weight, place, partial(_weight_columns, outputs=outputs)
        if a.bias is not None:
            yield a.bias, a.bias.columns, partial(OuterBlock.columns, slot=a.bias)
    elif isinstance(a, LookupBlock):
        read = torch.unique(torch.cat([a.index.reshape(-1), b.index.reshape(-1)]))
        within = torch.arange(a.fan_out, device=read.device)
        for part in _ranges(len(read), width // a.fan_out):
            rows = read[part]
            places = (a.weight.start + rows.unsqueeze(-1) * a.fan_out + within).flatten()
            yield a.weight, places, partial(LookupBlock.compressed, table_rows=rows)
    elif isinstance(a, DenseBlock):
        for part in _ranges(a.slot.size, width):
            start = a.slot.start
            inside = slice(start + part.start, start + part.stop)
            yield a.slot, inside, partial(_dense_columns, part=part)


def _weight_place(block: OuterBlock, outputs: slice) -> slice | Tensor:
    """Columns of J that belong to some outputs of a weight, in the order of its columns."""
    start, fan_in, fan_out = block.weight.start, block.fan_in, block.fan_out
    if not block.input_major:
        return slice(start + outputs.start * fan_in, start + outputs.stop * fan_in)
    columns = torch.arange(start, block.weight.stop, device=block.a.device)
    return columns.view(fan_in, fan_out)[:, outputs].flatten()


def _ranges(size: int, step: int) -> Iterator[slice]:
    for start in range(0, size, max(1, step)):
        yield slice(start, min(start + max(1, step), size))


def _weight_columns(block: OuterBlock, outputs: slice) -> Tensor:
    return block.weight_columns(outputs).flatten(2)


def _dense_columns(block: DenseBlock, part: slice) -> Tensor:
    return block.jacobian[..., part]
