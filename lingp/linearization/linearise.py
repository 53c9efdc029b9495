"""How one network on one kind of input is linearised, and doing it for a batch.

One forward pass records the calls of operations on uncertain parameters, one batched backward pass
gives the gradients of all outputs in what the calls return, and rules turn both into blocks of the
Jacobian. A parameter used several times (a module called twice, tied weights) gets the sum of its
uses: uses of the same kind become further positions of one block, others are written out and added.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lingp.linearization.blocks import Block, DenseBlock, LookupBlock, OuterBlock, Slot
from lingp.linearization.capture import Capture, Care, Layout, Record
from lingp.linearization.factors import Factors
from lingp.linearization.fallback import Fallback
from lingp.linearization.frozen import FrozenCopy
from lingp.linearization.inputs import Inputs, call_network, map_inputs, num_rows
from lingp.linearization.rules.base import Dense, Lookup, Outer, Piece
from lingp.linearization.running import output_gradients


@dataclass(frozen=True)
class Call:
    """What is known of one recorded call: what it is, where the examples lie, what to copy.

    `layouts` are those of its input and output; None if they could not be found.
    """

    identity: tuple[object, ...]
    names: tuple[str, ...]
    care: Care
    layouts: tuple[Layout, Layout] | None


@dataclass(frozen=True)
class Plan:
    """Calls in order, the parameters that rules cover, and the fallback for the others.

    `mapped` says that one backward pass serves all outputs, `distinct` counts the different rows
    that the plan was learned on.
    """

    calls: tuple[Call, ...]
    structured: frozenset[str]
    fallback: Fallback | None
    output_shape: torch.Size
    mapped: bool = True
    distinct: int = 0
    bytes_per_row: int = 1


def linearise(
    plan: Plan, lin: FrozenCopy, x: Inputs, differentiable: bool
) -> tuple[Tensor, Factors]:
    """Outputs (N, C) and factors of one batch: one forward pass, one batched backward pass.

    Raises
    ------
    RuntimeError
        If the network takes another path than the one it was planned on.
    """
    rows, parameters, slots = num_rows(x), lin.chosen(), lin.slots()
    watched = parameters if plan.structured else {}
    capture = Capture(watched, [call.care for call in plan.calls], differentiable)
    with lin.watching(capture) as network:
        f = call_network(network, x).reshape(rows, -1)
        same_calls = [r.identity for r in capture.records] == [c.identity for c in plan.calls]
        if plan.structured and not (same_calls and plan.structured.isdisjoint(capture.reaching(f))):
            if rows > 1:
                raise RuntimeError(
                    "net: it ran other operations on these inputs than on the first ones it saw, "
                    "so it branches on its inputs' values; wrap the branch in torch.where, or "
                    "exclude its parameters"
                )
            # Code that squeezes or broadcasts treats a single row in its own way.
            twice = map_inputs(lambda t: torch.cat([t, t]), x)
            f, factors = linearise(plan, lin, twice, differentiable)
            return f[:1], factors.rows(slice(0, 1))
        live = [i for i, call in enumerate(plan.calls) if plan.structured.intersection(call.names)]
        records = [capture.records[i] for i in live]
        gradients = output_gradients(f, [r.h for r in records], differentiable, plan.mapped)
    blocks: list[Block] = []
    with torch.set_grad_enabled(differentiable):
        while gradients:  # freed one by one as their factors are made: together they are the peak
            call, record, g = plan.calls[live.pop()], records.pop(), gradients.pop()
            columns = columns_of(record, parameters, slots)
            columns = {r: c for r, c in columns.items() if record.names[r] in plan.structured}
            blocks.extend(_blocks_of_call(call, record, columns, g, rows, lin.dtype))
        if plan.fallback is not None:
            with lin.watching(Capture({})) as network:
                found = plan.fallback(network, x, differentiable)
            for name, jacobian in found.items():
                jacobian = jacobian if differentiable else jacobian.detach()
                blocks.append(DenseBlock(jacobian.to(lin.dtype), slots[name]))
        blocks = merge(blocks, lin.parameter_slices)
    slices = tuple(lin.parameter_slices)
    factors = Factors(tuple(blocks), rows, f.shape[1], slices, lin.dtype, lin.device)
    return f.detach().to(lin.dtype), factors


def columns_of(
    record: Record, parameters: Mapping[str, Tensor], slots: Mapping[str, Slot]
) -> dict[str, tuple[Slot, bool]]:
    """For each role in a call, its columns and whether it is a transpose of the parameter.

    Views that aren't consecutive entries of a parameter have no role here.
    """
    found = {}
    for role, name in record.names.items():
        t, base = record.operation.parameters[role], parameters[name]
        turned = t.dim() == 2 and not t.is_contiguous()
        t = t.mT if turned else t
        if t.is_contiguous() and base.is_contiguous():
            start = slots[name].start + int(t.storage_offset()) - int(base.storage_offset())
            found[role] = Slot(slots[name].parameter, start, start + t.numel()), turned
    return found


def _blocks_of_call(
    call: Call,
    record: Record,
    columns: Mapping[str, tuple[Slot, bool]],
    g: Tensor,
    rows: int,
    dtype: torch.dtype,
) -> Iterator[Block]:
    assert call.layouts is not None
    x_layout, h_layout = call.layouts
    operation = record.operation

    def arrange(t: Tensor) -> Tensor:
        return x_layout.rows_first(t.to(dtype) if t.is_floating_point() else t, rows)

    g = h_layout.rows_first(g.to(dtype), rows, lead=1)
    x = g.new_empty(0) if operation.input is None else arrange(operation.input)
    aligned = {key: arrange(t) for key, t in operation.aligned.items()}
    operation = replace(operation, aligned=aligned, axis=h_layout.dim)
    pieces = dict(record.rule.pieces(operation, x, g))
    for role in [r for r, (_, turned) in columns.items() if turned and r in pieces]:
        pieces[role] = _transposed(pieces[role])
    return blocks_of(pieces, {role: slot for role, (slot, _) in columns.items()}, rows)


def _transposed(piece: Piece) -> Piece:
    """The Jacobian in W of what was found in Wᵀ."""
    if isinstance(piece, Outer):
        return replace(piece, input_major=not piece.input_major)
    assert isinstance(piece, Dense)
    return Dense(piece.jacobian.mT)


def blocks_of(
    pieces: Mapping[str, Piece], slots: Mapping[str, Slot], num_data: int
) -> Iterator[Block]:
    """Blocks of one call, with rows = examples; `slots` are the columns of its parameters."""
    for role, piece in pieces.items():
        slot = slots.get(role)
        if isinstance(piece, Outer):
            bias = slots.get(piece.bias or "")
            g = _by_example(piece.g, num_data)
            if slot is not None:
                a = _fold(piece.a, num_data)
                yield OuterBlock(a, _shared(g), slot, bias, piece.input_major)
            elif bias is not None:
                yield DenseBlock(g.sum(2), bias)
        elif slot is not None and isinstance(piece, Dense):
            outputs, rows = piece.jacobian.shape[:2]
            jacobian = _by_example(piece.jacobian.reshape(outputs, rows, 1, -1), num_data)
            once = jacobian.shape[2] == 1
            yield DenseBlock(jacobian.squeeze(2) if once else jacobian.sum(2), slot)
        elif slot is not None and isinstance(piece, Lookup):
            index, scale = (_fold(t, num_data) for t in (piece.index, piece.scale))
            yield LookupBlock(index, scale, _by_example(piece.g, num_data), slot)


def _fold(t: Tensor, num_data: int) -> Tensor:
    """(B, S, ...) with B = N·R to (N, R·S, ...)."""
    return t if len(t) == num_data else t.unflatten(0, (num_data, -1)).flatten(1, 2)


def _by_example(g: Tensor, num_data: int) -> Tensor:
    """(C, B, S, ...) with B = N·R to (N, C, R·S, ...), contiguous."""
    if g.shape[1] == num_data:
        g = g.transpose(0, 1)
        # Convolutions give (O, S) in memory; the copy keeps that, and so moves whole runs.
        return g.mT.contiguous().mT if g.stride(-1) > g.stride(-2) else g.contiguous()
    return g.unflatten(1, (num_data, -1)).transpose(0, 1).flatten(2, 3).contiguous()


def _shared(g: Tensor) -> Tensor:
    """Keep one example's gradients if all are the same, as in the last layer of most networks."""
    if len(g) < 2 or g.requires_grad or not torch.equal(g[0], g[-1]):
        return g
    return g[:1].clone() if bool((g == g[:1]).all()) else g


def merge(blocks: Iterable[Block], slices: Sequence[slice]) -> list[Block]:
    """Blocks in which every column occurs once; `slices` are the columns of all parameters."""
    by_parameter: dict[int, list[Block]] = defaultdict(list)
    for block in _without_shared_biases(list(blocks)):
        by_parameter[block.slots[0].parameter].append(block)
    merged = []
    for parameter, uses in sorted(by_parameter.items()):
        columns = slices[parameter]
        whole = Slot(parameter, columns.start, columns.stop)
        merged += uses if len(uses) == 1 or _disjoint(uses) else [_sum(uses, whole)]
    return [part for block in merged for part in _smaller(block)]


def _without_shared_biases(blocks: list[Block]) -> list[Block]:
    """Give a bias blocks of its own unless it is used always, and only, with one weight."""
    partners: dict[int, set[int]] = defaultdict(set)  # bias parameter -> weight parameters
    leading: dict[int, list[Block]] = defaultdict(list)  # parameter -> the blocks that are its own
    for block in blocks:
        weight, *biases = block.slots
        leading[weight.parameter].append(block)
        for bias in biases:
            partners[bias.parameter].add(weight.parameter)
    result: list[Block] = []
    for block in blocks:
        if isinstance(block, OuterBlock) and block.bias is not None:
            bias, mine = block.bias, leading[block.weight.parameter]
            alone = len(partners[bias.parameter]) == 1 and not leading[bias.parameter]
            if not (alone and (all(b.slots == mine[0].slots for b in mine) or _disjoint(mine))):
                result.append(DenseBlock(block.columns(bias), bias))
                block = replace(block, bias=None)
        result.append(block)
    return result


def _sum(blocks: Sequence[Block], whole: Slot) -> Block:
    """One block for all uses of a parameter."""
    first = blocks[0]
    if all(type(b) is type(first) and b.slots == first.slots for b in blocks):
        if isinstance(first, DenseBlock):
            return first.with_tensors([sum(b.tensors()[0] for b in blocks)])  # type: ignore[list-item]
        if isinstance(first, LookupBlock):
            index, scale, g = zip(*(b.tensors() for b in blocks), strict=True)
            return first.with_tensors([torch.cat(index, 1), torch.cat(scale, 1), torch.cat(g, 2)])
        outers = [b for b in blocks if isinstance(b, OuterBlock)]
        if all(b.input_major == outers[0].input_major for b in outers):
            g_all = [b.every_g() for b in outers]
            return first.with_tensors([torch.cat([b.a for b in outers], 1), torch.cat(g_all, 2)])
    total = first.tensors()[-1].new_zeros(first.num_data, first.num_outputs, whole.size)
    for block in blocks:
        slot = block.slots[0]
        total[..., slot.start - whole.start : slot.stop - whole.start] += block.columns(slot)
    return DenseBlock(total, whole)


def _disjoint(blocks: Iterable[Block]) -> bool:
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
