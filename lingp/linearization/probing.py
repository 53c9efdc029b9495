"""Learning how to linearise a network: once per kind of input, checked against autograd.

The network is run on two and on three examples in float64. That shows where the examples lie in
every recorded call, which outputs and inputs are overwritten in place, and whether rows are
independent. Then Jᵀv for a random v through the recorded calls is compared with autograd, per
parameter: J is linear, so agreement for a random v means that the factors hold J itself. Parameters
that disagree, or entered an operation without a rule, go through the fallback, which is held to the
same comparison.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import torch
from torch import nn

from lingp.linearization.capture import Capture, Record, find_layouts
from lingp.linearization.fallback import Fallback
from lingp.linearization.frozen import FrozenCopy
from lingp.linearization.inputs import (
    Inputs,
    call_network,
    map_inputs,
    num_rows,
    probe_rows,
    some_rows,
)
from lingp.linearization.linearise import Call, Plan, columns_of, linearise
from lingp.linearization.running import keeping_random_state, leaves, output_shape

PROBE_SIZES = (2, 3)


def make_plan(lin: FrozenCopy, x: Inputs) -> Plan:
    """Probe the network on rows like those of `x`.

    Raises
    ------
    ValueError
        If the rows of a batch depend on each other, or the outputs on none of the weights.
    RuntimeError
        If Jacobians disagree with autograd even through the fallback.
    """
    with keeping_random_state(lin.device):
        rows, distinct = probe_rows(x, PROBE_SIZES[-1])
        probe, rows = _probe_network(lin, rows)
        shape = check_independent(probe, rows, PROBE_SIZES[0])
        truth = _Truth(probe, rows)
        own = set(probe.network.parameters())
        strangers = [t for t in truth.leaves if isinstance(t, nn.Parameter) and t not in own]
        if strangers:
            warnings.warn(
                f"the network uses {len(strangers)} parameter tensors that are not registered in "
                "it (modules in a plain list, or a function of another network); they are held "
                "fixed",
                stacklevel=_CALLER,
            )
        if not truth.used:
            raise ValueError(_nothing_reached(probe, rows))
        plan = Plan((), frozenset(), None, shape, distinct=distinct)
        try:
            plan = _structured(plan, probe, rows, truth)
        except Exception as error:  # what is wrong with the network itself has shown above
            warnings.warn(
                f"the network's operations could not be recorded ({type(error).__name__}: "
                f"{error}); all Jacobians are computed by the general fallback (exact, but slower)",
                stacklevel=_CALLER,
            )
        plan = _completed(plan, probe, rows, truth)
        each = torch.finfo(lin.dtype).bits // 8
        return replace(plan, bytes_per_row=each * _scalars_per_row(plan, probe, rows))


_CALLER = 4  # frames from `make_plan` to who calls `factors`


def _probe_network(lin: FrozenCopy, rows: Inputs) -> tuple[FrozenCopy, Inputs]:
    """The network in float64, where errors can't hide behind rounding, if it runs in that."""
    if lin.dtype == torch.float64:
        return lin, rows
    try:
        double = copy.deepcopy(lin).to(dtype=torch.float64)
        converted = map_inputs(lambda t: t.double() if t.is_floating_point() else t, rows)
        with torch.no_grad():
            out = call_network(double.network, converted)
    except (RuntimeError, TypeError):
        return lin, rows
    return (double, converted) if getattr(out, "dtype", None) == torch.float64 else (lin, rows)


def check_independent(lin: FrozenCopy, x: Inputs, few: int) -> torch.Size:
    """Shape of one example's output, after checking that rows are independent.

    Raises
    ------
    ValueError
        If the outputs of the first `few` rows change with the others, or aren't one for each row.
    """
    with torch.no_grad():
        together = call_network(lin.network, x)
        alone = call_network(lin.network, some_rows(x, slice(few)))
    shape = output_shape(together, num_rows(x))
    output_shape(alone, few)
    scale = float(together.abs().max().clamp(min=1e-30)) if together.numel() else 1.0
    tolerance = _tolerance(together.dtype) * scale
    if not torch.allclose(alone, together[:few], rtol=0, atol=tolerance, equal_nan=True):
        raise ValueError(
            "net: the output of a row depends on which other rows are in the batch (or is random), "
            "so the network has no Jacobian per example. In eval mode this comes from BatchNorm "
            "without running statistics, attention across the batch, or noise in forward: call "
            "net.eval(), keep running statistics, or make the layer act on one example at a time"
        )
    return shape


def _tolerance(dtype: torch.dtype) -> float:
    """Rounding grows with the depth of a network; a wrong Jacobian is off by order one."""
    return {torch.float64: 1e-7, torch.float32: 5e-3}.get(dtype, 0.1)


class _Truth:
    """Jᵀv for a random v (N, C), by one ordinary backward pass."""

    def __init__(self, probe: FrozenCopy, rows: Inputs) -> None:
        chosen = probe.chosen()
        with probe.watching(Capture({})) as network:
            f = call_network(network, rows).reshape(num_rows(rows), -1)
            generator = torch.Generator().manual_seed(1)
            self.v = torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f)
            self.leaves = leaves(f)
            grads = (
                torch.autograd.grad(f, list(chosen.values()), self.v, allow_unused=True)
                if f.requires_grad
                else [None] * len(chosen)
            )
        self.product = {
            name: None if g is None else g.detach().reshape(-1)
            for name, g in zip(chosen, grads, strict=True)
        }
        self.used = {name for name, g in self.product.items() if g is not None}
        self.tolerance = _tolerance(self.v.dtype)
        # A gradient that is zero but for rounding agrees with any other such: a floor from the
        # largest one, and from v for networks whose gradients all are.
        sizes = [float(g.norm()) for g in self.product.values() if g is not None]
        sizes += [float(self.v.norm())] if self.v.dtype == torch.float64 else []
        self.floor = 1e3 * torch.finfo(self.v.dtype).eps * max(sizes, default=0.0)
        # of which these rows show nothing, as of a layer behind a unit that is off for all
        self.unseen = {
            name
            for name, g in self.product.items()
            if g is None or not float(g.norm()) > self.floor
        }

    def disagreeing(self, plan: Plan, probe: FrozenCopy, rows: Inputs) -> set[str]:
        """Parameters whose columns in the plan's factors give another Jᵀv."""
        _, factors = linearise(plan, probe, rows, False)
        product = factors.t_matmul(self.v.to(factors.dtype).unsqueeze(-1)).squeeze(-1)
        bad = set()
        for name, columns in zip(probe.parameter_names, probe.parameter_slices, strict=True):
            expected, got = self.product[name], product[columns]
            expected = torch.zeros_like(got) if expected is None else expected.to(got.dtype)
            size = max(float(expected.norm()), float(got.norm()))
            error = float((expected - got).norm())
            if not error <= self.tolerance * size + self.floor:
                bad.add(name)
        return bad


def _nothing_reached(probe: FrozenCopy, rows: Inputs) -> str:
    """The message where no path leads from the uncertain weights to the outputs."""
    names = probe.parameter_names
    every = [name for name, p in probe.network.named_parameters() if p.is_floating_point()]
    reaching = probe.reaching(every, rows)
    others = [name for name in every if name in reaching]
    return (
        f"parameters: the network's outputs don't depend on {', '.join(names[:6])}"
        f"{', ...' if len(names) > 6 else ''} at all, so that nothing would be uncertain; "
        + (
            f"choose weights that they depend on: {', '.join(others[-6:])}"
            if others
            else "they depend on none of its parameters (look for detach() and no_grad in forward)"
        )
    )


# Structured parameters ---------------------------------------------------------------------------


def _structured(plan: Plan, probe: FrozenCopy, rows: Inputs, truth: _Truth) -> Plan:
    """The plan with the parameters that the rules cover, as far as they agree with autograd."""
    (small, _), (large, missed) = (_record(probe, rows, size) for size in PROBE_SIZES)
    if [r.identity for r in small] != [r.identity for r in large]:
        return plan
    calls = tuple(_call(a, b) for a, b in zip(small, large, strict=True))
    seen: set[str] = set()
    parameters, slots = probe.chosen(), probe.slots()
    for call, record in zip(calls, large, strict=True):
        reached = columns_of(record, parameters, slots)
        for role, name in record.names.items():
            (seen if call.layouts and role in reached else missed).add(name)
    plan = replace(plan, calls=calls, structured=frozenset(seen - missed))
    # A network may compute in a lower precision than that of its outputs.
    truth.tolerance = max([truth.tolerance, *(_tolerance(r.h.dtype) for r in large)])
    _, factors = linearise(plan, probe, rows, False)
    found = {slot.parameter for block in factors.blocks for slot in block.slots}
    # What a rule has left out is not an error of the rule.
    left_out = {name for name, slot in slots.items() if slot.parameter not in found}
    plan = replace(plan, structured=plan.structured - left_out)
    disagree = truth.disagreeing(plan, probe, rows) & plan.structured
    if disagree:  # some operations of torch have wrong mapped derivatives, cdist among them
        alone = replace(plan, mapped=False)
        left = truth.disagreeing(alone, probe, rows) & plan.structured
        if left < disagree:
            plan, disagree = alone, left
    unseen = truth.unseen & plan.structured
    if unseen:
        disagree |= _disagreeing_elsewhere(plan, probe, rows, unseen, truth.tolerance)
    if disagree:
        warnings.warn(
            f"the layer factors of {sorted(disagree)} disagree with autograd; their Jacobians are "
            "computed by the general fallback instead (exact, but slower)",
            stacklevel=_CALLER + 1,
        )
    return replace(plan, structured=plan.structured - disagree)


def _record(probe: FrozenCopy, rows: Inputs, size: int) -> tuple[list[Record], set[str]]:
    """Recorded calls of some rows, and the parameters that reach the outputs outside of them."""
    capture = Capture(probe.chosen())
    with probe.watching(capture) as network:
        f = call_network(network, some_rows(rows, slice(size)))
        return capture.records, capture.reaching(f)


def _call(small: Record, large: Record) -> Call:
    """The call as two runs of it show it."""
    h_layouts = find_layouts(small.h.detach(), large.h.detach(), PROBE_SIZES)
    x_layouts = h_layouts
    if small.operation.input is not None and large.operation.input is not None:
        x_layouts = find_layouts(small.operation.input, large.operation.input, PROBE_SIZES)
    axes = large.operation.axes
    # readings of both in which the examples lie in the same order
    same = [(x, h) for x in x_layouts for h in h_layouts if x.order == h.order]
    known = len(same) == 1 and (axes is None or all(layout.dim in axes for layout in same[0]))
    layouts = same[0] if known else None
    return Call(large.identity, tuple(large.names.values()), large.care, layouts)


def _disagreeing_elsewhere(
    plan: Plan, probe: FrozenCopy, rows: Inputs, unseen: set[str], tolerance: float
) -> set[str]:
    """Those of `unseen` whose factors are wrong at other weights, where they do show."""
    bad: set[str] = set()
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        moved = copy.deepcopy(probe)
        for p in moved.network.parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
            p.data.add_(noise * p.data.square().mean().sqrt().clamp(min=0.1))
        truth = _Truth(moved, rows)
        truth.tolerance = tolerance
        if not all(bool(g.isfinite().all()) for g in truth.product.values() if g is not None):
            continue
        shown = unseen - truth.unseen
        bad |= truth.disagreeing(plan, moved, rows) & shown
        unseen = unseen - shown
        if not unseen:
            break
    return bad


def _completed(plan: Plan, probe: FrozenCopy, rows: Inputs, truth: _Truth) -> Plan:
    """The plan with the fallback for all other parameters that outputs depend on."""
    rest = [n for n in probe.parameter_names if n in truth.used and n not in plan.structured]
    if not rest:
        return plan
    plan = replace(plan, fallback=Fallback(rest))
    wrong = truth.disagreeing(plan, probe, rows)
    if wrong and plan.fallback is not None and plan.fallback.mapped:
        plan.fallback.mapped = False
        wrong = truth.disagreeing(plan, probe, rows)
    if wrong:
        raise RuntimeError(
            f"the Jacobians of {sorted(wrong)} disagree with autograd; the network does not give "
            "the same outputs and gradients each time it runs, or its rows are not independent"
        )
    return plan


def _scalars_per_row(plan: Plan, probe: FrozenCopy, rows: Inputs) -> int:
    """Activations, and gradients for every output, that one example keeps alive."""
    outputs, scalars = plan.output_shape.numel(), 0
    if plan.structured:
        count = PROBE_SIZES[-1]
        for record in _record(probe, rows, count)[0]:
            x = record.operation.input
            scalars += record.h.numel() // count * (2 + 2 * outputs)
            scalars += 0 if x is None else x.numel() // count
    fallback = plan.fallback.names if plan.fallback else ()
    slots = probe.slots()
    return scalars + sum(2 * outputs * slots[name].size for name in fallback)
