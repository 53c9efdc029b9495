"""How one network on one kind of input is linearised, and doing it for a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lingp.linearization.assemble import Use, merge, slot_of, uses_of_call
from lingp.linearization.blocks import DenseBlock, Slot
from lingp.linearization.capture import Capture, Care, Record
from lingp.linearization.factors import Factors
from lingp.linearization.fallback import Fallback
from lingp.linearization.frozen import FrozenCopy
from lingp.linearization.gradients import leaves, output_gradients
from lingp.linearization.inputs import Inputs, call_network, map_inputs, num_rows
from lingp.linearization.layout import Layout
from lingp.linearization.rules.base import Dense, Outer, Piece


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
    rows = num_rows(x)
    selected = lin.selected() if plan.structured else {}
    capture = Capture(selected, [call.care for call in plan.calls], differentiable)
    with lin.watching(capture) as network:
        f = call_network(network, x).reshape(rows, -1)
        if not _as_planned(plan, selected, capture, f):
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
    uses: list[Use] = []
    columns = Columns.of(lin)
    with torch.set_grad_enabled(differentiable):
        while gradients:  # freed one by one as their factors are made: together they are the peak
            call, record, g = plan.calls[live.pop()], records.pop(), gradients.pop()
            uses.extend(_uses(plan, call, columns, record, g, rows, lin.dtype))
        if plan.fallback is not None:
            found = _fallback_jacobians(plan.fallback, lin, x, differentiable)
            for name, jacobian in found.items():
                slot = columns.slots[name]
                uses.append(Use(DenseBlock(jacobian.to(lin.dtype), slot), slot))
        blocks = merge(uses)
    slices = tuple(lin.parameter_slices)
    factors = Factors(tuple(blocks), rows, f.shape[1], slices, lin.dtype, lin.device)
    return f.detach().to(lin.dtype), factors


def _as_planned(plan: Plan, selected: Mapping[Tensor, str], capture: Capture, f: Tensor) -> bool:
    """Whether the network ran the plan's calls and used structured parameters in no other way."""
    if not plan.structured:
        return True
    calls = [r.identity for r in capture.records] == [c.identity for c in plan.calls]
    return calls and not (direct_uses(selected, f) & plan.structured)


def direct_uses(selected: Mapping[Tensor, str], f: Tensor) -> set[str]:
    """Parameters that reach the outputs outside of recorded calls (which hold them fixed)."""
    return {selected[t] for t in leaves(f) if t in selected}


@dataclass(frozen=True)
class Columns:
    """The uncertain parameters of a network by name, and their columns."""

    parameters: Mapping[str, Tensor]
    slots: Mapping[str, Slot]

    @staticmethod
    def of(lin: FrozenCopy) -> Columns:
        return Columns(lin.chosen(), lin.slots())

    def of_call(self, record: Record) -> dict[str, tuple[Slot, Slot, bool]]:
        """For each role in a call: its columns, those of the whole parameter, whether transposed.

        Without the roles of views that are not consecutive entries of a parameter.
        """
        found = {}
        for role, name in record.names.items():
            t = record.operation.parameters[role]
            turned = t.dim() == 2 and not t.is_contiguous()
            slot = slot_of(t.mT if turned else t, self.slots[name], self.parameters[name])
            if slot is not None:
                found[role] = (slot, self.slots[name], turned)
        return found


def _uses(
    plan: Plan,
    call: Call,
    columns: Columns,
    record: Record,
    g: Tensor,
    rows: int,
    dtype: torch.dtype,
) -> list[Use]:
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
    slots = {}
    for role, (slot, whole, turned) in columns.of_call(record).items():
        if record.names[role] in plan.structured:
            slots[role] = (slot, whole)
            if turned and role in pieces:
                pieces[role] = _transposed(pieces[role])
    return list(uses_of_call(pieces, slots, rows))


def _transposed(piece: Piece) -> Piece:
    """The Jacobian in W of what was found in Wᵀ."""
    if isinstance(piece, Outer):
        return replace(piece, input_major=not piece.input_major)
    assert isinstance(piece, Dense)
    return Dense(piece.jacobian.mT)


def _fallback_jacobians(
    fallback: Fallback, lin: FrozenCopy, x: Inputs, differentiable: bool
) -> dict[str, Tensor]:
    with lin.watching(Capture({})) as network:
        jacobians = fallback(network, x, differentiable)
    return jacobians if differentiable else {name: j.detach() for name, j in jacobians.items()}
