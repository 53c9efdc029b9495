"""A trained network, frozen and linearised in its weights: outputs and factors for any inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lingp.linearization.factors import Factors
from lingp.linearization.frozen import FrozenCopy
from lingp.linearization.inputs import (
    Inputs,
    call_network,
    distinct_rows,
    input_tensors,
    map_inputs,
    num_rows,
    signature,
    some_rows,
)
from lingp.linearization.linearise import Plan, linearise
from lingp.linearization.probing import PROBE_SIZES, check_independent, make_plan
from lingp.linearization.running import keeping_random_state, output_shape, plain_autograd
from lingp.linearization.selection import ParameterSelection, layers

_DEFAULT_MEMORY = 1 << 27  # bytes of activations and gradients alive at a time
_CHECKED_ROWS = 256  # a batch of so many is held to what a few of its rows give alone


class LinearizedNetwork(FrozenCopy):
    """f_lin(x, θ) = f(x; θ*) + J(x) (θ − θ*), with J(x) = ∂f/∂θ at θ*.

    Holds a frozen copy of the network in eval mode; the network given is never changed, and changes
    to it are not seen. Running statistics are used by BatchNorm, dropout is off.

    Parameters
    ----------
    net : the trained network. `net(x)` gives a tensor with the examples first: (N,), (N, C) or (N,
        *shape), flattened to C outputs.
    parameters : the weights θ that are uncertain, see `select_parameters`. With "last_layer", the
        first inputs show whether the outputs depend on it; if not, the last one that they do depend
        on takes its place.
    dtype : run the copy in this dtype (default: leave the network's own).
    memory_budget : bytes of activations and gradients that may be alive at a time (default 128
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
        If the outputs of one row depend on other rows of the batch, or on none of the weights.
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
        super().__init__(net, parameters, dtype=dtype)
        last = isinstance(parameters, str) and parameters == "last_layer"
        self.assumed_names = tuple(self.parameter_names) if last else None
        self._layers = layers(net) if last else []  # until inputs were seen
        self.memory_budget = memory_budget or _DEFAULT_MEMORY
        self.output_shape: torch.Size | None = None
        self._plans: dict[Any, Plan] = {}
        # by kind of input, the largest batch in which rows were found independent
        self._checked: dict[Any, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        # plans name functions that do not pickle; they are remade
        return {**self.__dict__, "_plans": {}, "_checked": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = super().__deepcopy__(memo)
        twin._plans, twin._checked = {}, {}
        return twin

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """Move or convert the frozen copy, in place."""
        self._plans.clear()
        return super().to(device, dtype)

    @property
    def num_outputs(self) -> int:
        """C, known after the first call."""
        if self.output_shape is None:
            raise RuntimeError(
                "num_outputs is known once the network has seen inputs; call it first"
            )
        return self.output_shape.numel()

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
            self._find_last_layer(x)
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
                linearise(plan, self, some_rows(x, slice(start, start + step)), differentiable)
                for start in range(0, rows, step)
            ]
            outputs = self(x) if differentiable else torch.cat([f for f, _ in pieces])
            return outputs, Factors.cat([factors for _, factors in pieces])

    def bytes_per_row(self, x: Inputs) -> int:
        """Bytes of activations and gradients that one row like those of `x` keeps alive."""
        with plain_autograd(self.device, False):
            return self._plan(self._prepare(x)).bytes_per_row

    def _rows_at_a_time(self, plan: Plan, rows: int) -> int:
        """Batches of equal size that keep to the budget: a small last one would cost as much."""
        largest = max(1, self.memory_budget // max(1, plan.bytes_per_row))
        return -(-rows // -(-rows // largest))

    def _find_last_layer(self, x: Inputs) -> None:
        """Pass over last layers that the outputs at `x` don't depend on."""
        if not self._layers:
            return
        named = dict(self.network.named_parameters())
        real = [[n for n in layer if named[n].is_floating_point()] for layer in self._layers]
        with keeping_random_state(self.device):
            few = map_inputs(lambda t: t[: PROBE_SIZES[0]].detach(), x)
            reached = self.reaching([name for layer in real for name in layer], few)
        last = next((layer for layer in real if not reached.isdisjoint(layer)), None)
        if last is not None:
            self._choose([name for name in named if name in last])
        self._layers = []

    def _plan(self, x: Inputs) -> Plan:
        self._find_last_layer(x)
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
            with keeping_random_state(self.device):
                check_independent(self, some_rows(x, slice(rows)), PROBE_SIZES[-1])
            self._checked[key] = rows
        return plan


def _differentiable(x: Inputs) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in input_tensors(x))
