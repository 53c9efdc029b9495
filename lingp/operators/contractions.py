"""Kernel matrices from layer factors: Φ Φ'ᵀ = Σ_l σ_l² J_l J'_lᵀ, never forming J.

Each block is contracted the cheapest way, counted in flops per pair of examples (S positions, I
inputs, O pre-activations, C outputs; Novak et al., 2022, section 3, analyse the choices):

    tiles        (A Aᵀ) ∘ (G Gᵀ)                  I + C² O, only for S = 1
    panels       J Jᵀ, a panel of columns at a time   C² I O, plus making the columns
    positions    G · (A Aᵀ applied to G)ᵀ         S² (I + C O) + C² S O

Variances are those of parameter tensors, σ_l² (L,), or of single weights, v (P,): the latter scale
the factors where they can, see `lingp.operators.per_weight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lingp.linearization.blocks import Block, OuterBlock
from lingp.linearization.factors import Factors, aligned
from lingp.operators.panels import add_panel_gradients_, add_panels_
from lingp.operators.per_weight import diagonal_blocks_per_weight, is_per_weight, sort_units, split
from lingp.operators.tiles import add_tile_gradients_, add_unit_gradients_, fill_tiles_


def expand_variances(factors: Factors, variances: Tensor) -> Tensor:
    """Prior variance of every weight (P,) from one per parameter tensor (L,), or as they are."""
    if is_per_weight(factors, variances):
        return variances
    counts = torch.tensor([s.stop - s.start for s in factors.slices], device=variances.device)
    return variances.repeat_interleave(counts)


def diagonal_blocks(factors: Factors, variances: Tensor | None = None) -> Tensor:
    """J_n diag(variances) J_nᵀ for every example: (N, C, C); variances as `gram` takes them."""
    if variances is not None and is_per_weight(factors, variances):
        return diagonal_blocks_per_weight(factors, variances)
    shape = (factors.num_data, factors.num_outputs, factors.num_outputs)
    total = torch.zeros(shape, dtype=factors.dtype, device=factors.device)
    for block in factors.blocks:
        for slot in block.slots:
            part = block.diagonal_blocks(slot)
            total = total + (part if variances is None else variances[slot.parameter] * part)
    return total


def gram(
    factors: Factors,
    other: Factors | None = None,
    variances: Tensor | None = None,
    groups: Tensor | None = None,
) -> Tensor:
    """J diag(variances) J'ᵀ: the neural tangent kernel between two sets of examples.

    Parameters
    ----------
    factors : of N examples.
    other : of M examples of the same network; default the same N, for half the work.
    variances : (L,) prior variance of each parameter tensor, or (P,) of each weight; default 1.
    groups : (P,) numbers; weights of the same one have the same variance. Gradients in variances
        (P,) are then right in their sums over groups only, which is all that matters where they are
        made by indexing, and for the units of wide layers much cheaper.

    Returns
    -------
    (N·C, M·C) tensor, rows and columns data-major. Differentiable in `variances`, and in the
    factors if they carry a graph.

    Raises
    ------
    ValueError
        If the two sets of factors belong to different networks, or `variances` has another length.
    """
    _check(factors, other, variances)
    if other is not None:
        factors, other = aligned([factors, other])
    if variances is None:
        variances = torch.ones(len(factors.slices), dtype=factors.dtype, device=factors.device)
    tensors = factors.tensors() + (() if other is None else other.tensors())
    kernel: Tensor = _Gram.apply(factors, other, groups, variances.to(factors.dtype), *tensors)
    return kernel


def _check(factors: Factors, other: Factors | None, variances: Tensor | None) -> None:
    if other is not None and (
        other.slices != factors.slices or other.num_outputs != factors.num_outputs
    ):
        raise ValueError(
            f"other: factors of {other.num_outputs} outputs and {other.num_parameters} weights; "
            f"expected those of `factors`, {factors.num_outputs} and {factors.num_parameters}"
        )
    sizes = (len(factors.slices), factors.num_parameters)
    if variances is not None and (variances.dim() != 1 or len(variances) not in sizes):
        raise ValueError(
            f"variances: got shape {tuple(variances.shape)}; expected ({sizes[0]},), one per "
            f"parameter tensor, or ({sizes[1]},), one per weight"
        )


class _Gram(torch.autograd.Function):
    """The kernel; derivatives are recomputed, so that nothing of size L·(N·C)² is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        factors: Factors,
        other: Factors | None,
        groups: Tensor | None,
        variances: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.factors, ctx.other, ctx.groups = factors, other, groups
        ctx.save_for_backward(variances, *tensors)
        here, there = _separate(factors, other, [t.detach() for t in tensors])
        return _contract(here, there, variances.detach())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        variances, *tensors = ctx.saved_tensors
        if any(ctx.needs_input_grad[4:]):
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_(t.requires_grad) for t in (variances, *tensors)]
                here, there = _separate(ctx.factors, ctx.other, leaves[1:])
                kernel = _contract_differentiably(here, there, leaves[0])
            wanted = [t for t in leaves if t.requires_grad]
            found = iter(torch.autograd.grad(kernel, wanted, grad, allow_unused=True))
            grads = [next(found) if t.requires_grad else None for t in leaves]
            return None, None, None, *grads
        here, there = _separate(ctx.factors, ctx.other, tensors)
        by_variance = _variance_gradient(here, there, variances, grad, ctx.groups)
        return None, None, None, by_variance, *(None for _ in tensors)


def _separate(
    factors: Factors, other: Factors | None, tensors: Sequence[Tensor]
) -> tuple[Factors, Factors | None]:
    count = len(factors.tensors())
    here = factors.with_tensors(tensors[:count])
    return here, None if other is None else other.with_tensors(tensors[count:])


@dataclass(frozen=True)
class _Sorted:
    """Blocks of two sets of factors by the way they are contracted, in pairs."""

    tiles: list[tuple[OuterBlock, OuterBlock]]
    positions: list[tuple[OuterBlock, OuterBlock]]
    panels: list[tuple[Block, Block]]


def _sort(here: Factors, there: Factors) -> _Sorted:
    result = _Sorted([], [], [])
    for a, b in zip(here.blocks, there.blocks, strict=True):
        if isinstance(a, OuterBlock) and isinstance(b, OuterBlock):
            getattr(result, _method(a, b)).append((a, b))
        else:
            result.panels.append((a, b))
    return result


def _method(a: OuterBlock, b: OuterBlock) -> str:
    """The contraction with the fewest flops."""
    if a.num_positions == 1 and b.num_positions == 1:
        return "tiles"
    outputs, fan_in, fan_out = a.num_outputs, a.fan_in, a.fan_out
    s, t = a.num_positions, b.num_positions
    pairs = a.num_data * b.num_data
    make = outputs * fan_in * fan_out * (s * a.num_data + (t * b.num_data if b is not a else 0))
    panels = pairs * outputs**2 * fan_in * fan_out + make
    # Products over positions run as many small ones, at a fraction of a large product's rate.
    positions = 3 * pairs * (s * t * (fan_in + outputs * fan_out) + outputs**2 * s * fan_out)
    return "positions" if positions < panels else "panels"


def _contract(here: Factors, there: Factors | None, variances: Tensor) -> Tensor:
    other = here if there is None else there
    weights, columns = variances, []
    if is_per_weight(here, variances):
        parts = split(here, other, variances)
        here, other, variances, columns = parts.here, parts.other, parts.variances, parts.columns
    methods = _sort(here, other)
    size = (here.shape[0], other.shape[0])
    kernel = torch.empty(size, dtype=here.dtype, device=here.device)
    fill_tiles_(kernel, methods.tiles, here, other, variances)
    for a, b in methods.positions:
        _add_positions_(kernel, a, b, variances, symmetric=there is None)
    add_panels_(kernel, methods.panels, here, other, variances)
    add_panels_(kernel, columns, here, other, weights, per_weight=True)
    if there is None:
        _mirror_(kernel)
    return kernel


def _add_positions_(
    kernel: Tensor, a: OuterBlock, b: OuterBlock, variances: Tensor, symmetric: bool
) -> None:
    """Contract the right-hand g with the positions' inner products, then with the left-hand g.

    K[(n, c), (m, d)] = Σ_s g_{ncs} · h_{ns,md}        h_{ns,md} = Σ_t (a_{ns} · a_{mt}) g_{mdt}
    """
    outputs, fan_out = a.num_outputs, a.fan_out
    positions = a.num_positions
    g_right = b.every_g().transpose(1, 2).flatten(2)  # (M, T, C O)
    g_left = a.every_g().flatten(2)  # (N, C, S O)
    for n in range(a.num_data):
        stop = n + 1 if symmetric else b.num_data
        inner = torch.einsum("si,mti->mst", a.a[n], b.a[:stop]).mul_(variances[a.weight.parameter])
        if a.bias is not None:
            inner.add_(variances[a.bias.parameter])
        moved = (inner @ g_right[:stop]).view(stop, positions, outputs, fan_out)
        moved = moved.transpose(1, 2).reshape(stop * outputs, positions * fan_out)
        kernel[n * outputs : (n + 1) * outputs, : stop * outputs].addmm_(g_left[n], moved.T)


def _mirror_(kernel: Tensor) -> None:
    """Copy the lower triangle onto the upper, in pieces."""
    step = 512
    for start in range(0, len(kernel), step):
        stop = min(start + step, len(kernel))
        kernel[:start, start:stop] = kernel[start:stop, :start].T
        square = kernel[start:stop, start:stop]
        square.copy_(square.tril() + square.tril(-1).T)


def _variance_gradient(
    here: Factors,
    there: Factors | None,
    variances: Tensor,
    grad: Tensor,
    groups: Tensor | None,
) -> Tensor:
    """⟨grad, J_l J'_lᵀ⟩ for every parameter tensor l, or for every weight."""
    other = here if there is None else there
    grad = grad.contiguous()
    result = torch.zeros_like(variances)
    methods = _sort(here, other)
    if is_per_weight(here, variances):
        units = sort_units(methods.tiles, groups)
        add_unit_gradients_(result, grad, units.by_inputs, units.by_outputs, here, other)
        rest = [*units.rest, *methods.positions, *methods.panels]
        add_panel_gradients_(result, grad, rest, here, other, per_weight=True)
        return result
    add_tile_gradients_(result, grad, methods.tiles, here, other)
    add_panel_gradients_(result, grad, [*methods.positions, *methods.panels], here, other)
    return result


def _contract_differentiably(here: Factors, there: Factors | None, variances: Tensor) -> Tensor:
    """The same kernel by operations that autograd follows, for gradients in the factors."""
    other = here if there is None else there
    outputs = here.num_outputs
    shape = (here.num_data, outputs, other.num_data, outputs)
    kernel = torch.zeros(shape, dtype=here.dtype, device=here.device)
    per_weight = is_per_weight(here, variances)
    methods = _sort(here, other)
    if per_weight:
        methods = _Sorted([], [], list(zip(here.blocks, other.blocks, strict=True)))
    for a, b in methods.tiles:
        inner = variances[a.weight.parameter] * (a.a[:, 0] @ b.a[:, 0].T)
        if a.bias is not None:
            inner = inner + variances[a.bias.parameter]
        outer = torch.einsum("nco,mdo->ncmd", a.every_g()[:, :, 0], b.every_g()[:, :, 0])
        kernel = kernel + inner[:, None, :, None] * outer
    flat = kernel.reshape(here.shape[0], other.shape[0])
    dense: list[tuple[Block, Block]] = [*methods.positions, *methods.panels]
    for left_block, right_block in dense:
        for slot in left_block.slots:
            left, right = (x.columns(slot).flatten(0, 1) for x in (left_block, right_block))
            if per_weight:
                flat = flat + (left * variances[slot.columns]) @ right.T
            else:
                flat = flat + variances[slot.parameter] * (left @ right.T)
    return flat
