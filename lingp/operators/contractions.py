"""Kernel matrices from layer factors: Φ Φ'ᵀ = Σ_l σ_l² J_l J'_lᵀ, never forming J.

Each block is contracted the cheapest way, counted in flops per pair of examples (S positions, I inputs,
O pre-activations, C outputs; Novak et al., 2022, section 3, analyse the choices):

    hadamard    (A Aᵀ) ∘ (G Gᵀ)                          I + C² O, only for S = 1
    columns     J Jᵀ, columns in pieces                  C² I O, plus making them
    mixed       G · (A Aᵀ applied to G)ᵀ                 S² (I + C O) + C² S O

The kernel is filled in tiles that fit the processor's cache: all hadamard layers are added to a tile
before the next is begun, and for a symmetric kernel only tiles on and below the diagonal are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.linearization.blocks import Block, DenseBlock, LookupBlock, OuterBlock, Slot
from lingp.linearization.factors import Factors

_TILE_SCALARS = 1 << 18  # scalars in one tile of the kernel
_PANEL_BYTES = 1 << 24  # bytes of dense columns made at a time


def expand_variances(factors: Factors, variances: Tensor) -> Tensor:
    """Prior variance of every weight (P,) from one per parameter tensor (L,)."""
    counts = torch.tensor([s.stop - s.start for s in factors.slices], device=variances.device)
    return variances.repeat_interleave(counts)


def diagonal_blocks(factors: Factors, variances: Tensor | None = None) -> Tensor:
    """J_n diag(variances) J_nᵀ for every example: (N, C, C)."""
    shape = (factors.num_data, factors.num_outputs, factors.num_outputs)
    total = torch.zeros(shape, dtype=factors.dtype, device=factors.device)
    for block in factors.blocks:
        for slot in block.slots:
            part = block.diagonal_blocks(slot)
            total = total + (part if variances is None else variances[slot.parameter] * part)
    return total


def gram(factors: Factors, other: Factors | None = None, variances: Tensor | None = None) -> Tensor:
    """J diag(variances) J'ᵀ: the neural tangent kernel between two sets of examples.

    Parameters
    ----------
    factors : of N examples.
    other : of M examples of the same network; default the same N, for half the work.
    variances : (L,) prior variance of each parameter tensor; default 1.

    Returns
    -------
    (N·C, M·C) tensor, rows and columns data-major. Differentiable in `variances`, and in the factors if
    they carry a graph.

    Raises
    ------
    ValueError
        If the two sets of factors belong to different networks, or `variances` has another length.
    """
    _check(factors, other, variances)
    if variances is None:
        variances = torch.ones(len(factors.slices), dtype=factors.dtype, device=factors.device)
    tensors = factors.tensors() + (() if other is None else other.tensors())
    kernel: Tensor = _Gram.apply(factors, other, variances.to(factors.dtype), *tensors)
    return kernel


def _check(factors: Factors, other: Factors | None, variances: Tensor | None) -> None:
    if other is not None and (
        other.slices != factors.slices or other.num_outputs != factors.num_outputs
    ):
        raise ValueError(
            f"other: factors of {other.num_outputs} outputs and {other.num_parameters} weights; expected "
            f"the same network as `factors`, {factors.num_outputs} and {factors.num_parameters}"
        )
    if variances is not None and variances.shape != (len(factors.slices),):
        raise ValueError(
            f"variances: got shape {tuple(variances.shape)}; expected ({len(factors.slices)},), one per "
            "parameter tensor"
        )


class _Gram(torch.autograd.Function):
    """The kernel, with derivatives recomputed rather than stored: nothing of size L·(N·C)² is kept."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx,
        factors: Factors,
        other: Factors | None,
        variances: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.factors, ctx.other = factors, other  # type: ignore[attr-defined]
        ctx.save_for_backward(variances, *tensors)
        here, there = _separate(factors, other, [t.detach() for t in tensors])
        return _contract(here, there, variances.detach())

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def,override]
        variances, *tensors = ctx.saved_tensors
        if any(ctx.needs_input_grad[3:]):
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_(t.requires_grad) for t in (variances, *tensors)]
                here, there = _separate(ctx.factors, ctx.other, leaves[1:])
                kernel = _contract_differentiably(here, there, leaves[0])
            wanted = [t for t in leaves if t.requires_grad]
            found = iter(torch.autograd.grad(kernel, wanted, grad, allow_unused=True))
            grads = [next(found) if t.requires_grad else None for t in leaves]
            return None, None, *grads
        here, there = _separate(ctx.factors, ctx.other, tensors)
        by_variance = _variance_gradient(here, there, variances, grad)
        return None, None, by_variance, *(None for _ in tensors)


def _separate(
    factors: Factors, other: Factors | None, tensors: Sequence[Tensor]
) -> tuple[Factors, Factors | None]:
    count = len(factors.tensors())
    here = factors.with_tensors(tensors[:count])
    return here, None if other is None else other.with_tensors(tensors[count:])


# How each block is contracted ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sorted:
    """Blocks of two sets of factors by the way they are contracted, in pairs."""

    hadamard: list[tuple[OuterBlock, OuterBlock]]
    mixed: list[tuple[OuterBlock, OuterBlock]]
    columns: list[tuple[Block, Block]]


def _sort(here: Factors, there: Factors) -> _Sorted:
    result = _Sorted([], [], [])
    for a, b in zip(here.blocks, there.blocks, strict=True):
        if isinstance(a, OuterBlock) and isinstance(b, OuterBlock):
            getattr(result, _method(a, b)).append((a, b))
        else:
            result.columns.append((a, b))
    return result


def _method(a: OuterBlock, b: OuterBlock) -> str:
    """The contraction with the fewest flops."""
    if a.num_positions == 1 and b.num_positions == 1:
        return "hadamard"
    outputs, fan_in, fan_out = a.num_outputs, a.fan_in, a.fan_out
    s, t = a.num_positions, b.num_positions
    pairs = a.num_data * b.num_data
    make = outputs * fan_in * fan_out * (s * a.num_data + (t * b.num_data if b is not a else 0))
    columns = pairs * outputs**2 * fan_in * fan_out + make
    # Products over positions run as many small ones, at a fraction of a large product's rate.
    mixed = 3 * pairs * (s * t * (fan_in + outputs * fan_out) + outputs**2 * s * fan_out)
    return "mixed" if mixed < columns else "columns"


def _contract(here: Factors, there: Factors | None, variances: Tensor) -> Tensor:
    symmetric = there is None
    other = here if there is None else there
    methods = _sort(here, other)
    rows, columns = here.shape[0], other.shape[0]
    kernel = torch.empty(rows, columns, dtype=here.dtype, device=here.device)
    for i, j in _tiles(here, other, symmetric):
        _fill_tile_(_tile_of(kernel, i, j, here.num_outputs), methods.hadamard, i, j, variances)
    for a, b in methods.mixed:
        _add_mixed_(kernel, a, b, variances, symmetric)
    for left, right in _panels(methods.columns, here, other, variances):
        _add_product_(kernel, left, right, symmetric)
    if symmetric:
        _mirror_(kernel)
    return kernel


def _tiles(here: Factors, other: Factors, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Pairs of example ranges; of a symmetric kernel only those that touch the lower triangle."""
    step = max(1, int(_TILE_SCALARS**0.5) // here.num_outputs)
    for i in range(0, here.num_data, step):
        rows = slice(i, min(i + step, here.num_data))
        for j in range(0, rows.stop if symmetric else other.num_data, step):
            yield rows, slice(j, min(j + step, other.num_data))


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
    """`tile += inner ⊗ outer`, tile (n, C, m, C); the last layer's `outer` is usually the identity."""
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


def _add_product_(kernel: Tensor, left: Tensor, right: Tensor, symmetric: bool) -> None:
    """`kernel += left rightᵀ`, only the lower triangle of row blocks if symmetric."""
    if not symmetric:
        kernel.addmm_(left, right.T)
        return
    step = max(64, -(-len(left) // 8))
    for start in range(0, len(left), step):
        stop = min(start + step, len(left))
        kernel[start:stop, :stop].addmm_(left[start:stop], right[:stop].T)


def _mirror_(kernel: Tensor) -> None:
    """Copy the lower triangle onto the upper, in pieces."""
    step = 512
    for start in range(0, len(kernel), step):
        stop = min(start + step, len(kernel))
        kernel[:start, start:stop] = kernel[start:stop, :start].T
        square = kernel[start:stop, start:stop]
        square.copy_(square.tril() + square.tril(-1).T)


# Columns --------------------------------------------------------------------------------------------


def _panels(
    pairs: Sequence[tuple[Block, Block]], here: Factors, other: Factors, variances: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Dense columns, scaled by prior standard deviations, in panels of bounded width."""
    for slots, left, right in _gather(pairs, here, other):
        scale = torch.cat([variances[s.parameter].sqrt().expand(s.size) for s in slots])
        scaled = left * scale
        yield scaled, scaled if right is left else right * scale


def _gather(
    pairs: Sequence[tuple[Block, Block]], here: Factors, other: Factors
) -> Iterator[tuple[list[Slot], Tensor, Tensor]]:
    """Dense columns with their slots; narrow ones joined, so that each pass over the kernel counts."""
    same = other is here
    rows = here.shape[0] + (0 if same else other.shape[0])
    width = max(1, _PANEL_BYTES * 8 // (rows * torch.finfo(here.dtype).bits))
    waiting: list[tuple[Slot, Tensor, Tensor]] = []

    def joined() -> tuple[list[Slot], Tensor, Tensor]:
        slots, left, right = zip(*waiting, strict=True)
        if len(slots) == 1:
            return list(slots), left[0], right[0]
        left_panel = torch.cat(left, 1)
        return list(slots), left_panel, left_panel if same else torch.cat(right, 1)

    total = 0
    for piece in _pieces(pairs, width, same):
        if waiting and total + piece[0].size > width:
            yield joined()
            waiting, total = [], 0
        waiting.append(piece)
        total += piece[0].size
    if waiting:
        yield joined()


def _pieces(
    pairs: Sequence[tuple[Block, Block]], width: int, same: bool
) -> Iterator[tuple[Slot, Tensor, Tensor]]:
    """Columns (N·C, w) of both sides, at most about `width` at a time, with the slot they belong to."""
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


# Mixed ----------------------------------------------------------------------------------------------


def _add_mixed_(
    kernel: Tensor, a: OuterBlock, b: OuterBlock, variances: Tensor, symmetric: bool
) -> None:
    """Contract the right-hand g with the positions' inner products, then with the left-hand g."""
    outputs, fan_out = a.num_outputs, a.fan_out
    s, t = a.num_positions, b.num_positions
    g_right = b.every_g().transpose(1, 2).flatten(2)  # (M, T, C O)
    g_left = a.every_g().flatten(2)  # (N, C, S O)
    for n in range(a.num_data):
        stop = n + 1 if symmetric else b.num_data
        inner = torch.einsum("si,mti->mst", a.a[n], b.a[:stop]).mul_(variances[a.weight.parameter])
        if a.bias is not None:
            inner.add_(variances[a.bias.parameter])
        moved = (inner @ g_right[:stop]).view(stop, s, outputs, fan_out)
        moved = moved.transpose(1, 2).reshape(stop * outputs, s * fan_out)
        kernel[n * outputs : (n + 1) * outputs, : stop * outputs].addmm_(g_left[n], moved.T)


# Derivatives ----------------------------------------------------------------------------------------


def _contract_differentiably(here: Factors, there: Factors | None, variances: Tensor) -> Tensor:
    """The same kernel by operations that autograd follows, for gradients in the factors."""
    other = here if there is None else there
    outputs = here.num_outputs
    shape = (here.num_data, outputs, other.num_data, outputs)
    kernel = torch.zeros(shape, dtype=here.dtype, device=here.device)
    methods = _sort(here, other)
    for a, b in methods.hadamard:
        inner = variances[a.weight.parameter] * (a.a[:, 0] @ b.a[:, 0].T)
        if a.bias is not None:
            inner = inner + variances[a.bias.parameter]
        outer = torch.einsum("nco,mdo->ncmd", a.every_g()[:, :, 0], b.every_g()[:, :, 0])
        kernel = kernel + inner[:, None, :, None] * outer
    flat = kernel.reshape(here.shape[0], other.shape[0])
    for a, b in [*methods.mixed, *methods.columns]:
        for slot in a.slots:
            left, right = a.columns(slot).flatten(0, 1), b.columns(slot).flatten(0, 1)
            flat = flat + variances[slot.parameter] * (left @ right.T)
    return flat


def _variance_gradient(
    here: Factors, there: Factors | None, variances: Tensor, grad: Tensor
) -> Tensor:
    """⟨grad, J_l J'_lᵀ⟩ for every parameter tensor l."""
    symmetric = there is None
    other = here if there is None else there
    methods = _sort(here, other)
    outputs = here.num_outputs
    grad = grad.contiguous()
    result = torch.zeros_like(variances)
    for i, j in _tiles(here, other, symmetric):
        weight = _tile_of(grad, i, j, outputs).unflatten(2, (-1, outputs))  # (n, C, m, C)
        if symmetric and i != j:
            mirrored = _tile_of(grad, j, i, outputs).unflatten(2, (-1, outputs))
            weight = weight + mirrored.permute(2, 3, 0, 1)
        for a, b in methods.hadamard:
            outer = (_g_rows(a, i) @ _g_rows(b, j).T).view(weight.shape)
            local = (outer * weight).sum((1, 3))  # (n, m)
            result[a.weight.parameter] += (local * (a.a[i, 0] @ b.a[j, 0].T)).sum()
            if a.bias is not None:
                result[a.bias.parameter] += local.sum()
    for slots, left, right in _gather([*methods.mixed, *methods.columns], here, other):
        by_column = ((grad @ right) * left).sum(0)
        parts = by_column.split([s.size for s in slots])
        for slot, part in zip(slots, parts, strict=True):
            result[slot.parameter] += part.sum()
    return result
