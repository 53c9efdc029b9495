"""A trained network, frozen and linearised in its weights: outputs and factors for any inputs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lingp.linearization.blocks import Slot
from lingp.linearization.capture import Capture, module_rules
from lingp.linearization.factors import Factors
from lingp.linearization.inputs import (
    Inputs,
    call_network,
    distinct_rows,
    input_tensors,
    map_inputs,
    num_rows,
    signature,
)
from lingp.linearization.plan import Plan, linearise
from lingp.linearization.probing import PROBE_SIZES, check_batch, make_plan
from lingp.linearization.selection import ParameterSelection, select_parameters, unwrapped

_DEFAULT_MEMORY = 1 << 27  # bytes of activations and gradients alive at a time
_CHECKED_ROWS = 256  # a batch of so many is held to what a few of its rows give alone


def frozen_copy(net: nn.Module) -> nn.Module:
    """A copy of `net` in eval mode that shares nothing with it and computes the same outputs."""
    memo: dict[int, Any] = {}
    for module in net.modules():
        for value in (*vars(module).values(), *module._buffers.values()):
            if isinstance(value, Tensor) and not value.is_leaf:
                # deepcopy refuses tensors with a graph, which weight_norm leaves behind
                memo[id(value)] = value.detach().clone()
    net = _uncompiled(copy.deepcopy(net, memo)).eval()
    for p in net.parameters():
        if not p.is_leaf:  # as deepcopy leaves those of scripted modules
            p.detach_()
        p.requires_grad_(False).data = p.data.contiguous()
    for module in net.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            _as_plain_table(module)
    return net


def _uncompiled(net: nn.Module) -> nn.Module:
    """A compiled module hides its operations; the module that it wraps shows them."""
    net = unwrapped(net)
    for name, child in list(net.named_children()):
        net._modules[name] = _uncompiled(child)
    net._compiled_call_impl = None
    return net


@torch.no_grad()
def _as_plain_table(table: nn.Embedding | nn.EmbeddingBag) -> None:
    """Without what only training wants: scaled and sparse gradients, renormalised rows."""
    table.sparse = table.scale_grad_by_freq = False
    if table.max_norm is not None:
        norms = torch.linalg.vector_norm(table.weight, table.norm_type, -1, keepdim=True)
        # the same formula as torch's, which does this to the rows it reads
        table.weight.mul_(torch.where(norms > table.max_norm, table.max_norm / (norms + 1e-7), 1.0))
        table.max_norm = None


class LinearizedNetwork:
    """f_lin(x, θ) = f(x; θ*) + J(x) (θ − θ*), with J(x) = ∂f/∂θ at θ*.

    Holds a frozen copy of the network in eval mode; the network given is never changed, and changes
    to it are not seen. Running statistics are used by BatchNorm, dropout is off.

    Parameters
    ----------
    net : the trained network. `net(x)` gives a tensor with the examples first: (N,), (N, C) or (N,
        *shape), flattened to C outputs.
    parameters : the weights θ that are uncertain, see `select_parameters`.
    dtype : run the copy in this dtype (default: leave the network's own).
    memory_budget : bytes of activations and gradients that may be alive at a time (default 256
        MiB). Batches are cut to keep to it; results don't depend on it.

    Attributes
    ----------
    network : the frozen copy.
    parameter_names, parameter_shapes, parameter_slices : of the L uncertain parameter tensors, and
        their places among the P columns.
    output_shape : shape of one example's output, known after the first call.

    Raises
    ------
    TypeError
        If `net` is not a module, or its output is not a tensor.
    ValueError
        If the outputs of one row depend on other rows of the batch.
    """

    def __init__(
        self,
        net: nn.Module,
        parameters: ParameterSelection = "all",
        *,
        dtype: torch.dtype | None = None,
        memory_budget: int | None = None,
    ) -> None:
        if not isinstance(net, nn.Module):
            raise TypeError(f"net: got {type(net).__name__}; expected a torch.nn.Module")
        if memory_budget is not None and memory_budget <= 0:
            raise ValueError(
                f"memory_budget: got {memory_budget}; expected a positive number of bytes"
            )
        self.parameter_names = list(select_parameters(net, parameters))
        self.network = frozen_copy(unwrapped(net))
        self.memory_budget = memory_budget or _DEFAULT_MEMORY
        self._plans: dict[Any, Plan] = {}
        self._checked: dict[
            Any, int
        ] = {}  # rows of the largest batch in which they were independent
        self.to(dtype=dtype)
        self.parameter_shapes = [p.shape for p in self.chosen().values()]
        stops = torch.tensor([s.numel() for s in self.parameter_shapes]).cumsum(0).tolist()
        self.parameter_slices = [slice(a, b) for a, b in zip([0, *stops], stops, strict=False)]
        self.output_shape: torch.Size | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_plans": {},
            "_checked": {},
        }  # plans name functions that do not pickle; they are remade

    def __deepcopy__(self, memo: dict[int, Any]) -> LinearizedNetwork:
        twin = copy.copy(self)
        twin.network = frozen_copy(self.network)
        twin._plans, twin._checked = {}, {}
        return twin

    def chosen(self) -> dict[str, nn.Parameter]:
        """The uncertain parameters of the frozen copy, by name."""
        named = dict(self.network.named_parameters())
        return {name: named[name] for name in self.parameter_names}

    def selected(self) -> dict[Tensor, str]:
        """The names of the uncertain parameters of the frozen copy."""
        return {p: name for name, p in self.chosen().items()}

    def slots(self) -> dict[str, Slot]:
        """The columns of each uncertain parameter."""
        columns = zip(self.parameter_names, self.parameter_slices, strict=True)
        return {name: Slot(i, s.start, s.stop) for i, (name, s) in enumerate(columns)}

    @property
    def num_parameters(self) -> int:
        """P, the number of uncertain weights."""
        return self.parameter_slices[-1].stop

    @property
    def num_parameter_tensors(self) -> int:
        """L, the number of uncertain parameter tensors."""
        return len(self.parameter_names)

    @property
    def dtype(self) -> torch.dtype:
        """Of the uncertain parameters, the outputs and the factors; the widest, if they differ."""
        dtypes = [p.dtype for p in self.chosen().values()]
        return reduce(torch.promote_types, dtypes)

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return next(iter(self.chosen().values())).device

    @property
    def num_outputs(self) -> int:
        """C, known after the first call."""
        if self.output_shape is None:
            raise RuntimeError(
                "num_outputs is known once the network has seen inputs; call it first"
            )
        return self.output_shape.numel()

    def weights(self) -> Tensor:
        """θ*, flat (P,)."""
        return torch.cat([p.detach().reshape(-1) for p in self.chosen().values()])

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> LinearizedNetwork:
        """Move or convert the frozen copy, in place."""
        self.network.to(device=device, dtype=dtype)
        self._plans.clear()
        return self

    def _prepare(self, x: Inputs) -> Inputs:
        if num_rows(x) == 0:
            raise ValueError("x: has no rows; expected at least one")
        dtype = next(p.dtype for p in self.network.parameters() if p.is_floating_point())

        def place(t: Tensor) -> Tensor:
            t = t.to(self.device, dtype if t.is_floating_point() else None)
            return t.clone() if t.is_inference() else t

        return map_inputs(place, x)

    def __call__(self, x: Inputs) -> Tensor:
        """Outputs f(x; θ*), (N, C), with a graph only if `x` requires grad."""
        differentiable = _differentiable(x)
        with plain_autograd(self.device, differentiable):
            x = self._prepare(x)
            rows = num_rows(x)
            with torch.set_grad_enabled(differentiable):
                out = call_network(self.network, x)
                if rows == 1 and isinstance(out, Tensor) and (out.dim() == 0 or len(out) != 1):
                    # squeezed by code that treats a single row in its own way
                    out = call_network(self.network, map_inputs(lambda t: torch.cat([t, t]), x))
                    rows = 2
                self.output_shape = output_shape(out, rows)
                flat: Tensor = out.reshape(rows, -1)[: num_rows(x)].to(self.dtype)
            return flat

    def factors(self, x: Inputs) -> tuple[Tensor, Factors]:
        """Outputs (N, C) and Jacobian factors at `x`.

        Computed in batches that keep to `memory_budget`. If `x` requires grad (and grad mode is
        on), both carry a graph to `x`.
        """
        differentiable = _differentiable(x)
        with plain_autograd(self.device, differentiable):
            x = self._prepare(x)
            plan = self._plan(x)
            self.output_shape = plan.output_shape
            rows = num_rows(x)
            step = self._rows_at_a_time(plan, rows)
            pieces = [
                linearise(plan, self, map_inputs(_slice(start, start + step), x), differentiable)
                for start in range(0, rows, step)
            ]
            outputs = self(x) if differentiable else torch.cat([f for f, _ in pieces])
            return outputs, Factors.cat([factors for _, factors in pieces])

    def _rows_at_a_time(self, plan: Plan, rows: int) -> int:
        """Batches of equal size that keep to the budget: a small last one would cost as much."""
        largest = max(1, self.memory_budget // max(1, plan.bytes_per_row))
        return -(-rows // -(-rows // largest))

    def _plan(self, x: Inputs) -> Plan:
        key = signature(x)
        plan = self._plans.get(key)
        # A plan learned on fewer different rows than it takes may have missed that rows are not
        # independent.
        if plan is None or (
            plan.distinct < PROBE_SIZES[-1]
            and plan.distinct < len(distinct_rows(x, PROBE_SIZES[-1]))
        ):
            plan = self._plans[key] = make_plan(self, x)
            self._checked[key] = PROBE_SIZES[-1]
        rows = min(num_rows(x), _CHECKED_ROWS)
        rows = min(rows, self._rows_at_a_time(plan, num_rows(x)))
        if rows >= 2 * self._checked[key]:
            check_batch(self, map_inputs(_slice(0, rows), x))
            self._checked[key] = rows
        return plan

    @contextmanager
    def watching(self, capture: Capture) -> Iterator[nn.Module]:
        """The frozen network, with its uncertain parameters differentiable and `capture` active."""
        chosen = list(self.chosen().values())
        for p in chosen:
            p.requires_grad_(True)
        try:
            with module_rules(self.network, capture), torch.enable_grad(), capture:
                yield self.network
        finally:
            for p in chosen:
                p.requires_grad_(False)


def output_shape(out: Any, rows: int) -> torch.Size:
    """Shape of one example's output; checks that `out` is a tensor with the examples first."""
    if not isinstance(out, Tensor):
        raise TypeError(
            f"net: its output is {type(out).__name__}; expected one tensor. Wrap the network in a "
            "module that returns the tensor to be modelled"
        )
    if out.dim() == 0 or out.shape[0] != rows:
        raise ValueError(
            f"net: its output has shape {tuple(out.shape)} for {rows} rows; expected the examples "
            f"first: ({rows},), ({rows}, C) or ({rows}, ...)"
        )
    return out.shape[1:]


def _differentiable(x: Inputs) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in input_tensors(x))


def _slice(start: int, stop: int) -> Any:
    return lambda t: t[start:stop]


@contextmanager
def plain_autograd(device: torch.device, differentiable: bool) -> Iterator[None]:
    """Ordinary eager autograd, whatever the caller is in.

    Outside inference mode, autocast and compilation, without the fused attention that serves
    inference only (it differs at masked positions), and with attention that is twice differentiable
    where needed.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        if differentiable:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        if "torch._dynamo" in sys.modules:  # importing it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        torch.backends.mha.set_fastpath_enabled(False)
        yield
