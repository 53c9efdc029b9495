"""Kernels with one prior variance per weight, J diag(v) J'ᵀ with v (P,).

A layer stays in factors where the variances of its weight, V (O x I), allow it:

    rows of V the same        (A diag(v_i) Aᵀ) ∘ (G Gᵀ)            one variance per input
    columns of V the same     (A Aᵀ) ∘ (G diag(v_o) Gᵀ)            one variance per output
    a table                   rows of V are read along with those of the table
    any V                     the columns of J times v, panel by panel

Values are compared exactly: priors make equal variances by indexing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lingp.linearization.blocks import Block, DenseBlock, LookupBlock, OuterBlock, Slot
from lingp.linearization.factors import Factors

_PIECE_SCALARS = 1 << 20  # entries of the columns that are written out at a time


def is_per_weight(factors: Factors, variances: Tensor) -> bool:
    """Whether variances are those of weights (P,) rather than of parameter tensors (L,)."""
    return variances.shape[0] == factors.num_parameters != len(factors.slices)


@dataclass(frozen=True)
class Split:
    """J diag(v) J'ᵀ as the kernel of other factors, and a rest.

    Attributes
    ----------
    here, other : factors for one variance per parameter tensor; the same object if J' is J.
    variances : (L,), those variances.
    columns : blocks of J and J' that have to be contracted by their columns, with v.
    """

    here: Factors
    other: Factors
    variances: Tensor
    columns: list[tuple[Block, Block]]


def split(here: Factors, other: Factors, variances: Tensor) -> Split:
    """Take J diag(v) J'ᵀ apart by what stays in factors; both have the same blocks."""
    starts = [min(s.start, here.num_parameters - 1) for s in here.slices]
    firsts = variances[starts]
    equal = [(variances[s] == first).all() for s, first in zip(here.slices, firsts, strict=True)]
    uniform = torch.stack(equal)
    per_tensor = torch.where(uniform, firsts, 1.0)
    kept, columns = _scaled(here, variances, uniform.tolist())
    kept_other, columns_other = kept, columns
    if other is not here:
        kept_other, columns_other = _scaled(other, variances, uniform.tolist())
    return Split(kept, kept_other, per_tensor, list(zip(columns, columns_other, strict=True)))


def _scaled(
    factors: Factors, variances: Tensor, uniform: list[bool]
) -> tuple[Factors, list[Block]]:
    kept: list[Block] = []
    columns: list[Block] = []
    for block in factors.blocks:
        if all(uniform[slot.parameter] for slot in block.slots):
            kept.append(block)
        elif isinstance(block, LookupBlock):
            table = variances[block.weight.columns].sqrt().view(-1, block.fan_out)
            kept.append(replace(block, g=block.g * table[block.index].unsqueeze(1)))
        elif isinstance(block, OuterBlock):
            _add_scaled(block, variances, uniform, kept, columns)
        else:
            columns.append(block)
    return replace(factors, blocks=tuple(kept)), columns


def _add_scaled(
    block: OuterBlock,
    variances: Tensor,
    uniform: list[bool],
    kept: list[Block],
    columns: list[Block],
) -> None:
    """Put J diag(v)^{1/2} of a layer among the blocks that are kept, or J among the others."""
    matrix = block.matrix(variances)
    bias = block.bias
    if uniform[block.weight.parameter]:
        scaled = block
    elif bool((matrix == matrix[:1]).all()):
        scaled = replace(block, a=block.a * matrix[0].sqrt())
    elif bool((matrix == matrix[:, :1]).all()):
        scaled = replace(block, g=block.g * matrix[:, 0].sqrt())
    else:
        columns.append(block)
        return
    if bias is not None and (scaled.g is not block.g or not uniform[bias.parameter]):
        scaled = replace(scaled, bias=None)
        columns.append(DenseBlock(block.columns(bias), bias))
    kept.append(scaled)


@dataclass(frozen=True)
class Units:
    """Layers by whether the weights of their input units or output units form groups."""

    by_inputs: list[tuple[OuterBlock, OuterBlock]]
    by_outputs: list[tuple[OuterBlock, OuterBlock]]
    rest: list[tuple[OuterBlock, OuterBlock]]


def sort_units(pairs: Sequence[tuple[OuterBlock, OuterBlock]], groups: Tensor | None) -> Units:
    """Sort layers by groups (P,) of weights; without any, each weight stands for itself."""
    units = Units([], [], [])
    for pair in pairs:
        block = pair[0]
        if groups is None:
            units.rest.append(pair)
            continue
        matrix = block.matrix(groups)
        bias = groups[slice(0, 0) if block.bias is None else block.bias.columns]
        if bool((matrix == matrix[:1]).all()) and bool((bias == bias[:1]).all()):
            units.by_inputs.append(pair)
        elif bool((matrix == matrix[:, :1]).all()):
            units.by_outputs.append(pair)
        else:
            units.rest.append(pair)
    return units


def needs_columns(factors: Factors, variances: Tensor) -> bool:
    """Whether some matrices have variances that vary along both of their axes."""
    if not is_per_weight(factors, variances):
        return False
    matrices = (b.matrix(variances) for b in factors.blocks if isinstance(b, OuterBlock))
    return any(bool((m != m[:1]).any()) and bool((m != m[:, :1]).any()) for m in matrices)


def diagonal_blocks_per_weight(factors: Factors, variances: Tensor) -> Tensor:
    """J_n diag(v) J_nᵀ for every example, (N, C, C), differentiable; no N·C·P memory."""
    shape = (factors.num_data, factors.num_outputs, factors.num_outputs)
    total = torch.zeros(shape, dtype=factors.dtype, device=factors.device)
    for block in factors.blocks:
        if isinstance(block, OuterBlock):
            part = _outer_diagonal(block, variances)
        elif isinstance(block, LookupBlock):
            table = variances[block.weight.columns].view(-1, block.fan_out)[block.index]
            g = block.scaled_g()  # (N, C, S, O)
            same = (block.index[:, :, None] == block.index[:, None, :]).to(g.dtype).unsqueeze(1)
            part = (g * table.unsqueeze(1)).flatten(2) @ (same @ g).flatten(2).mT
        else:
            part = _dense_diagonal(block, block.slots[0], variances)
        total = total + part
    return total


def _outer_diagonal(block: OuterBlock, variances: Tensor) -> Tensor:
    if block.num_positions == 1:
        squares = block.a[:, 0].square() @ block.matrix(variances).T  # (N, O)
        g = block.g[:, :, 0]
        part = (g * squares.unsqueeze(1)) @ g.mT
    else:
        part = _dense_diagonal(block, block.weight, variances)
    if block.bias is not None:
        part = part + _dense_diagonal(block, block.bias, variances)
    return part


def _dense_diagonal(block: Block, slot: Slot, variances: Tensor) -> Tensor:
    """Columns are written out for a few examples at a time, and again for the gradient."""
    own = variances[slot.columns]
    step = max(1, _PIECE_SCALARS // max(1, block.num_outputs * slot.size))

    def piece(start: int) -> Callable[[Tensor], Tensor]:
        def blocks(own: Tensor) -> Tensor:
            columns = block.rows(slice(start, start + step)).columns(slot)
            return (columns * own) @ columns.mT

        return blocks

    starts = range(0, block.num_data, step)
    if not torch.is_grad_enabled() or len(starts) < 2:
        return torch.cat([piece(start)(own) for start in starts])
    parts = [
        checkpoint(piece(start), own, use_reentrant=False, preserve_rng_state=False)
        for start in starts
    ]
    return torch.cat(parts)
