"""Layers of one position: (σ_w² A Aᵀ + σ_b²) ∘ (G Gᵀ), added tile by tile.

A tile of the kernel fits the processor's cache. All such layers are added to it before the next
tile is begun, so the kernel is written once, and no temporary is larger than a tile. Of a symmetric
kernel only tiles on and below the diagonal are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lingp.linearization.blocks import OuterBlock
from lingp.linearization.factors import Factors

_TILE_SCALARS = 1 << 19  # on a processor; an accelerator wants few large kernels, not a cache
_ACCELERATOR_TILE_SCALARS = 1 << 24

Pairs = Sequence[tuple[OuterBlock, OuterBlock]]


def fill_tiles_(
    kernel: Tensor, pairs: Pairs, here: Factors, other: Factors, variances: Tensor
) -> None:
    """Write the sum of the layers' kernels; of a symmetric one (`other is here`) the lower half."""
    for i, j in _tiles(here, other):
        _fill_tile_(_tile_of(kernel, i, j, here.num_outputs), pairs, i, j, variances)


def add_tile_gradients_(
    result: Tensor, grad: Tensor, pairs: Pairs, here: Factors, other: Factors
) -> None:
    """Add ⟨grad, J_l J'_lᵀ⟩ to the entry of every parameter tensor l of these layers."""
    for i, j, weight in _weighted_tiles(grad, here, other):
        for a, b in pairs:
            outer = (_g_rows(a, i) @ _g_rows(b, j).T).view(weight.shape)
            local = (outer * weight).sum((1, 3))  # (n, m)
            result[a.weight.parameter] += (local * (a.a[i, 0] @ b.a[j, 0].T)).sum()
            if a.bias is not None:
                result[a.bias.parameter] += local.sum()


def add_unit_gradients_(
    result: Tensor,
    grad: Tensor,
    by_inputs: Pairs,
    by_outputs: Pairs,
    here: Factors,
    other: Factors,
) -> None:
    """Add the gradients in variances of input units, or of output units, of these layers.

    `result` (P,) has one entry per weight; a unit's gradient is spread over its weights evenly.
    Layers by inputs have one variance for all of a bias, those by outputs one for each entry.
    """
    for i, j, weight in _weighted_tiles(grad, here, other):
        flat = weight.reshape(weight.shape[0] * weight.shape[1], -1)
        for a, b in by_inputs:
            outer = (_g_rows(a, i) @ _g_rows(b, j).T).view(weight.shape)
            local = (outer * weight).sum((1, 3))  # (n, m)
            matrix = a.matrix(result)
            matrix += ((local @ b.a[j, 0]) * a.a[i, 0]).sum(0) / a.fan_out
            if a.bias is not None:
                result[a.bias.columns] += local.sum() / a.fan_out
        for a, b in by_outputs:
            left, right = _g_rows(a, i), _g_rows(b, j)
            inner = (a.a[i, 0] @ b.a[j, 0].T)[:, None, :, None]
            weighted = (weight * inner).view_as(flat)
            matrix = a.matrix(result)
            matrix += ((weighted @ right) * left).sum(0).unsqueeze(-1) / a.fan_in
            if a.bias is not None:
                result[a.bias.columns] += ((flat @ right) * left).sum(0)


def _tiles(here: Factors, other: Factors) -> Iterator[tuple[slice, slice]]:
    """Pairs of example ranges; of a symmetric kernel only those that touch the lower triangle."""
    scalars = _TILE_SCALARS if here.device.type == "cpu" else _ACCELERATOR_TILE_SCALARS
    step = max(1, int(scalars**0.5) // here.num_outputs)
    for i in range(0, here.num_data, step):
        rows = slice(i, min(i + step, here.num_data))
        for j in range(0, rows.stop if other is here else other.num_data, step):
            yield rows, slice(j, min(j + step, other.num_data))


def _weighted_tiles(
    grad: Tensor, here: Factors, other: Factors
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Tiles of the gradient, (n, C, m, C); of a symmetric kernel both halves in one."""
    outputs = here.num_outputs
    for i, j in _tiles(here, other):
        weight = _tile_of(grad, i, j, outputs).unflatten(2, (-1, outputs))
        if other is here and i != j:
            mirrored = _tile_of(grad, j, i, outputs).unflatten(2, (-1, outputs))
            weight = weight + mirrored.permute(2, 3, 0, 1)
        yield i, j, weight


def _tile_of(kernel: Tensor, i: slice, j: slice, outputs: int) -> Tensor:
    """A tile of the kernel as a view (n, C, m C)."""
    view = kernel.view(kernel.shape[0] // outputs, outputs, kernel.shape[1])
    return view[i, :, j.start * outputs : j.stop * outputs]


def _fill_tile_(
    tile: Tensor,
    pairs: Sequence[tuple[OuterBlock, OuterBlock]],
    i: slice,
    j: slice,
    variances: Tensor,
) -> None:
    """Write Σ_l (σ_w² A Aᵀ + σ_b²) ∘ (G Gᵀ) into one tile."""
    n, outputs, columns = tile.shape
    buffer = torch.empty(n * outputs, columns, dtype=tile.dtype, device=tile.device)
    tile.zero_()
    for a, b in pairs:
        inner = _input_gram(a, b, i, j, variances)  # (n, m)
        if a.shared and b.shared:
            _add_shared_(tile.unflatten(2, (-1, outputs)), inner, a.g[0, :, 0] @ b.g[0, :, 0].T)
            continue
        torch.mm(_g_rows(a, i), _g_rows(b, j).T, out=buffer)
        if outputs > 1:  # repeat along the outputs once, so that the sum below runs over whole rows
            inner = inner.unsqueeze(2).expand(-1, -1, outputs).reshape(n, columns)
        tile.addcmul_(buffer.view(tile.shape), inner.unsqueeze(1))


def _add_shared_(tile: Tensor, inner: Tensor, outer: Tensor) -> None:
    """`tile += inner ⊗ outer`, tile (n, C, m, C); a last layer's `outer` is often the identity."""
    if torch.equal(outer, torch.diag(outer.diagonal())):
        tile.diagonal(dim1=1, dim2=3).add_(inner.unsqueeze(-1) * outer.diagonal())
    else:
        tile.addcmul_(outer[None, :, None, :], inner[:, None, :, None])


def _input_gram(a: OuterBlock, b: OuterBlock, i: slice, j: slice, variances: Tensor) -> Tensor:
    inner = (a.a[i, 0] @ b.a[j, 0].T).mul_(variances[a.weight.parameter])
    return inner if a.bias is None else inner.add_(variances[a.bias.parameter])


def _g_rows(block: OuterBlock, rows: slice) -> Tensor:
    """Gradients of a range of examples, data-major: (n·C, O)."""
    return block.every_g()[rows, :, 0].flatten(0, 1)
