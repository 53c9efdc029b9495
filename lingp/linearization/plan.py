"""How to linearise one network on one kind of input: learned once, checked against autograd, then reused.

The network is run on two and on three examples in float64. That shows where the examples lie in every
recorded call, which outputs and inputs are overwritten in place, and whether rows are independent. Then
Jᵀv for a random v through the recorded calls is compared with autograd, per parameter: J is linear, so
agreement for a random v means that the factors hold J itself. Parameters that disagree, or entered an
operation without a rule, go through the fallback, which is held to the same comparison.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lingp.linearization.assemble import Use, merge, slot_of, uses_of_call
from lingp.linearization.blocks import DenseBlock, Slot
from lingp.linearization.capture import Capture, Care, Record
from lingp.linearization.factors import Factors
from lingp.linearization.fallback import Fallback
from lingp.linearization.inputs import (
    Inputs,
    call_network,
    input_tensors,
    map_inputs,
    num_rows,
    probe_rows,
)
from lingp.linearization.layout import Layout, find_layout

if TYPE_CHECKING:
    from lingp.linearization.network import LinearizedNetwork

_PROBE_SIZES = (2, 3)


@dataclass(frozen=True)
class Call:
    """What is known of one recorded call: what it is, where the examples lie, what to copy."""

    kind: object
    names: tuple[str, ...]
    care: Care
    input_layout: Layout | None
    output_layout: Layout | None

    @property
    def placed(self) -> bool:
        return self.input_layout is not None and self.output_layout is not None


@dataclass(frozen=True)
class Plan:
    """Calls in order, the parameters that rules cover, and the fallback for the others."""

    calls: tuple[Call, ...]
    structured: frozenset[str]
    fallback: Fallback | None
    output_shape: torch.Size
    bytes_per_row: int = 1


def make_plan(lin: LinearizedNetwork, x: Inputs) -> Plan:
    """Probe the network on rows like those of `x`.

    Raises
    ------
    ValueError
        If the rows of a batch depend on each other.
    RuntimeError
        If Jacobians disagree with autograd even through the fallback.
    """
    devices = {t.device for t in input_tensors(x) if t.is_cuda}
    with torch.random.fork_rng(devices=list(devices)):
        probe, dtype = _probe_network(lin, x)
        rows = map_inputs(
            lambda t: t.to(dtype) if t.is_floating_point() else t, probe_rows(x, _PROBE_SIZES[1])
        )
        return _make_plan(lin, probe, rows, x)


def _probe_network(lin: LinearizedNetwork, x: Inputs) -> tuple[LinearizedNetwork, torch.dtype]:
    """The network in float64, where disagreement can't hide behind rounding; its own dtype if it can't."""
    if lin.dtype == torch.float64:
        return lin, lin.dtype
    try:
        double = copy.deepcopy(lin).to(dtype=torch.float64)
        with torch.no_grad():
            call_network(
                double.network,
                map_inputs(lambda t: t[:1].double() if t.is_floating_point() else t[:1], x),
            )
    except (RuntimeError, TypeError):
        return lin, lin.dtype
    return double, torch.float64


def _make_plan(lin: LinearizedNetwork, probe: LinearizedNetwork, rows: Inputs, x: Inputs) -> Plan:
    from lingp.linearization.network import output_shape

    small_size, large_size = _PROBE_SIZES
    runs: list[tuple[Tensor, Capture]] = []
    for size in _PROBE_SIZES:
        capture = Capture(_selected(probe))
        with probe.watching(capture) as network:
            out = call_network(network, map_inputs(lambda t, size=size: t[:size], rows))
        runs.append((out, capture))
    (f_small, small), (f_large, large) = runs
    shape = output_shape(f_large, large_size)
    _check_rows(f_small.detach(), f_large.detach()[:small_size])

    calls: list[Call] = []
    same = [_identity(r) for r in small.records] == [_identity(r) for r in large.records]
    for a, b in zip(small.records, large.records, strict=True) if same else ():
        x_layout = find_layout(a.operation.input, b.operation.input, _PROBE_SIZES)
        h_layout = find_layout(a.h.detach(), b.h.detach(), _PROBE_SIZES)
        if not b.operation.any_axis and any(
            lay is not None and lay.dim != 0 for lay in (x_layout, h_layout)
        ):
            x_layout = None
        calls.append(Call(b.kind, tuple(b.names.values()), b.care, x_layout, h_layout))

    seen = {name for call in calls if call.placed for name in call.names}
    unplaced = {name for call in calls if not call.placed for name in call.names}
    structured = seen - unplaced - large.foreign - small.foreign
    plan = Plan(tuple(calls), frozenset(structured), None, shape)
    plan = _verified(plan, probe, rows)
    return replace(plan, bytes_per_row=_bytes_per_row(plan, lin, large, large_size))


def _selected(lin: LinearizedNetwork) -> dict[Tensor, str]:
    named = dict(lin.network.named_parameters())
    return {named[name]: name for name in lin.parameter_names}


def _identity(record: Record) -> tuple[object, tuple[str, ...]]:
    return record.kind, tuple(record.names.values())


def _tolerance(dtype: torch.dtype) -> float:
    """Rounding grows with the depth of a network; a wrong Jacobian is off by order one."""
    return 1e-7 if dtype == torch.float64 else 5e-3


def _check_rows(alone: Tensor, together: Tensor) -> None:
    scale = float(together.detach().abs().max().clamp(min=1e-30))
    if not torch.allclose(
        alone, together, rtol=0, atol=_tolerance(alone.dtype) * scale, equal_nan=True
    ):
        raise ValueError(
            "net: the output of a row depends on which other rows are in the batch (or is random), so the "
            "network has no Jacobian per example. In eval mode this comes from BatchNorm without running "
            "statistics, attention across the batch, or noise in forward: call net.eval(), keep running "
            "statistics, or make the layer act on one example at a time"
        )


def _verified(plan: Plan, probe: LinearizedNetwork, rows: Inputs) -> Plan:
    """Move parameters to the fallback until Jᵀv agrees with autograd."""
    truth, v = _autograd_product(probe, rows)
    tolerance = _tolerance(v.dtype)
    # A gradient that is zero but for rounding agrees with any other such: a floor from the largest one.
    largest = max((float(t.norm()) for t in truth.values() if t is not None), default=0.0)
    floor = 1e3 * torch.finfo(v.dtype).eps * largest

    def wrong(plan: Plan) -> set[str]:
        _, factors = linearise(plan, probe, rows, False)
        product = factors.t_matmul(v.unsqueeze(-1)).squeeze(-1)
        bad = set()
        for name, columns in zip(probe.parameter_names, probe.parameter_slices, strict=True):
            expected, got = truth[name], product[columns]
            expected = torch.zeros_like(got) if expected is None else expected.reshape(-1)
            size = max(float(expected.norm()), float(got.norm()))
            if not float((expected - got).norm()) <= tolerance * size + floor:
                bad.add(name)
        return bad

    used = {name for name, grad in truth.items() if grad is not None}
    disagree = wrong(plan) & plan.structured
    names = [
        n
        for n in probe.parameter_names
        if n in used and (n not in plan.structured or n in disagree)
    ]
    if disagree:
        warnings.warn(
            f"the layer factors of {sorted(disagree)} disagree with autograd; their Jacobians are computed "
            "by the general fallback instead (exact, but slower)",
            stacklevel=6,
        )
    plan = replace(
        plan,
        structured=plan.structured - disagree,
        fallback=Fallback(names) if names else None,
    )
    still = wrong(plan) if names else set()
    if still:
        raise RuntimeError(
            f"the Jacobians of {sorted(still)} disagree with autograd; the network does not give the same "
            "outputs and gradients each time it runs"
        )
    return plan


def _autograd_product(
    probe: LinearizedNetwork, rows: Inputs
) -> tuple[dict[str, Tensor | None], Tensor]:
    """Jᵀv by one ordinary backward pass, for a random v (N, C)."""
    selected = _selected(probe)
    with probe.watching(Capture({})) as network:
        out = call_network(network, rows)
        f = out.reshape(num_rows(rows), -1)
        generator = torch.Generator().manual_seed(1)
        v = torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f)
        if not f.requires_grad:
            return dict.fromkeys(selected.values()), v
        grads = torch.autograd.grad(f, list(selected), v, allow_unused=True)
    return dict(zip(selected.values(), grads, strict=True)), v


def _bytes_per_row(plan: Plan, lin: LinearizedNetwork, capture: Capture, rows: int) -> int:
    """Activations, and gradients for every output, that one example keeps alive."""
    outputs = plan.output_shape.numel()
    scalars = sum(
        r.h.numel() // rows * (2 + 2 * outputs) + r.operation.input.numel() // rows
        for r in capture.records
    )
    fallback = set(plan.fallback.names) if plan.fallback else set()
    sizes = zip(lin.parameter_names, lin.parameter_shapes, strict=True)
    scalars += sum(2 * outputs * shape.numel() for name, shape in sizes if name in fallback)
    return scalars * torch.finfo(lin.dtype).bits // 8


def linearise(
    plan: Plan, lin: LinearizedNetwork, x: Inputs, differentiable: bool
) -> tuple[Tensor, Factors]:
    """Outputs (N, C) and factors of one batch: one forward pass, one batched backward pass.

    Raises
    ------
    RuntimeError
        If the network takes another path than the one it was planned on.
    """
    selected = _selected(lin)
    capture = Capture(selected, [call.care for call in plan.calls], differentiable)
    rows = num_rows(x)
    with lin.watching(capture) as network:
        f = call_network(network, x).reshape(rows, -1)
        if plan.structured and [_identity(r) for r in capture.records] != [
            (c.kind, c.names) for c in plan.calls
        ]:
            raise RuntimeError(
                "net: it ran other operations on these inputs than on the first ones it saw, so it branches "
                "on its inputs' values; wrap the branch in torch.where, or exclude its parameters"
            )
        live = [i for i, call in enumerate(plan.calls) if plan.structured.intersection(call.names)]
        records = [capture.records[i] for i in live]
        gradients = batched_gradients(f, [r.h for r in records], differentiable)
    wholes = {
        name: Slot(i, s.start, s.stop)
        for i, (name, s) in enumerate(zip(lin.parameter_names, lin.parameter_slices, strict=True))
    }
    parameters = {name: p for p, name in selected.items()}
    uses: list[Use] = []
    with torch.set_grad_enabled(differentiable):
        for i, record, g in zip(live, records, gradients, strict=True):
            uses.extend(_uses(plan, plan.calls[i], record, g, rows, wholes, parameters))
        if plan.fallback is not None:
            for name, jacobian in _fallback_jacobians(
                plan.fallback, lin, x, differentiable
            ).items():
                uses.append(Use(DenseBlock(jacobian, wholes[name]), wholes[name]))
        blocks = merge(uses)
    slices = tuple(lin.parameter_slices)
    factors = Factors(tuple(blocks), rows, f.shape[1], slices, lin.dtype, lin.device)
    return f.detach(), factors


def _uses(
    plan: Plan,
    call: Call,
    record: Record,
    g: Tensor,
    rows: int,
    wholes: dict[str, Slot],
    parameters: dict[str, Tensor],
) -> list[Use]:
    assert call.input_layout is not None and call.output_layout is not None
    slots = {}
    for role, name in record.names.items():
        if name in plan.structured:
            slot = slot_of(record.operation.parameters[role], wholes[name], parameters[name])
            if slot is not None:
                slots[role] = (slot, wholes[name])
    x = call.input_layout.rows_first(record.operation.input, rows)
    g = call.output_layout.rows_first(g, rows, lead=1)
    return list(uses_of_call(record.rule.pieces(record.operation, x, g), slots, rows))


def batched_gradients(f: Tensor, hs: Sequence[Tensor], create_graph: bool) -> list[Tensor]:
    """∂f_c/∂h for every output c at once: (C, *h.shape) for every h, by one mapped backward pass."""
    rows, outputs = f.shape
    if not hs:
        return []
    if outputs == 1:
        ones = torch.ones_like(f)
        grads = torch.autograd.grad(f, hs, ones, create_graph=create_graph, allow_unused=True)
        return [_or_zeros(g, h).unsqueeze(0) for g, h in zip(grads, hs, strict=True)]
    basis = torch.eye(outputs, dtype=f.dtype, device=f.device).unsqueeze(1).expand(-1, rows, -1)
    try:
        grads = torch.autograd.grad(
            f,
            hs,
            basis,
            create_graph=create_graph,
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=True,
        )
    except RuntimeError:  # an operation that cannot be mapped: one output at a time
        singles = [
            torch.autograd.grad(
                f, hs, b, create_graph=create_graph, retain_graph=True, allow_unused=True
            )
            for b in basis
        ]
        return [
            torch.stack([_or_zeros(g, h) for g in per_output])
            for per_output, h in zip(zip(*singles, strict=True), hs, strict=True)
        ]
    return [
        h.new_zeros(outputs, *h.shape) if g is None else g for g, h in zip(grads, hs, strict=True)
    ]


def _or_zeros(g: Tensor | None, h: Tensor) -> Tensor:
    return torch.zeros_like(h) if g is None else g


def _fallback_jacobians(
    fallback: Fallback, lin: LinearizedNetwork, x: Inputs, differentiable: bool
) -> dict[str, Tensor]:
    with lin.watching(Capture({})) as network:
        jacobians = fallback(network, x, differentiable)
    return jacobians if differentiable else {name: j.detach() for name, j in jacobians.items()}
