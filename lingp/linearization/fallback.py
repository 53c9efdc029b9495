"""Per-example Jacobians by automatic differentiation, for parameters that no rule covers.

`torch.func` maps reverse mode over outputs and examples at once. A network that cannot be mapped
(recurrent kernels, control flow on values, custom functions without a batching rule) is
differentiated one example and one output at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from lingp.linearization.inputs import Inputs, call_network, map_inputs, num_rows, some_rows

_UNMAPPABLE = (RuntimeError, NotImplementedError, TypeError, ValueError)


@dataclass
class Fallback:
    """Jacobians of the parameters `names`, (N, C, size) each.

    Attributes
    ----------
    mapped : whether `torch.func` can map this network; learned at the first call.
    """

    names: Sequence[str]
    mapped: bool | None = field(default=None)

    def __call__(self, network: nn.Module, x: Inputs, create_graph: bool) -> dict[str, Tensor]:
        if self.mapped is None:
            try:
                jacobians = self._mapped(network, x)
            except _UNMAPPABLE:
                # What is wrong with the network itself shows again, unmasked, one example at a
                # time.
                self.mapped = False
            else:
                self.mapped = True
                return jacobians
        return (
            self._mapped(network, x) if self.mapped else self._one_by_one(network, x, create_graph)
        )

    def _mapped(self, network: nn.Module, x: Inputs) -> dict[str, Tensor]:
        every = dict(network.named_parameters())
        chosen = {name: every[name].detach() for name in self.names}

        def outputs(parameters: dict[str, Tensor], row: Inputs) -> Tensor:
            one = map_inputs(lambda t: t.unsqueeze(0), row)
            caller = _Caller(network)
            named = {f"network.{name}": p for name, p in parameters.items()}
            out: Tensor = functional_call(caller, named, (one,))
            return out.reshape(-1)

        with warnings.catch_warnings():
            # An operation without a batching rule is mapped by a loop inside torch: slow, and
            # exact.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            jacobians = vmap(jacrev(outputs), in_dims=(None, 0))(chosen, x)
        return {name: j.reshape(*j.shape[:2], -1) for name, j in jacobians.items()}

    def _one_by_one(self, network: nn.Module, x: Inputs, create_graph: bool) -> dict[str, Tensor]:
        every = dict(network.named_parameters())
        chosen = [every[name] for name in self.names]
        rows: list[list[Tensor]] = [[] for _ in chosen]
        for n in range(num_rows(x)):
            with torch.enable_grad():
                out = call_network(network, some_rows(x, slice(n, n + 1))).reshape(-1)
                per_output = [
                    torch.autograd.grad(
                        f,
                        chosen,
                        retain_graph=True,
                        create_graph=create_graph,
                        materialize_grads=True,
                    )
                    for f in out
                ]
            for row, grads in zip(rows, zip(*per_output, strict=True), strict=True):
                row.append(torch.stack(grads).flatten(1))  # (C, size)
        return {name: torch.stack(p) for name, p in zip(self.names, rows, strict=True)}


class _Caller(nn.Module):
    """Lets `functional_call` pass any kind of input."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.training = network.training

    def forward(self, x: Inputs) -> Tensor:
        out: Tensor = call_network(self.network, x)
        return out
