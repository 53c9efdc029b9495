"""A frozen copy of a network, and which of its weights are uncertain."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd
from typing_extensions import Self

from lingp.linearization.blocks import Slot
from lingp.linearization.capture import Capture, module_rules
from lingp.linearization.inputs import Inputs, call_network
from lingp.linearization.running import leaves
from lingp.linearization.selection import ParameterSelection, select_parameters, unwrapped


class FrozenCopy:
    """A copy of a network in eval mode, which nothing that happens to the network reaches.

    Parameters
    ----------
    net : the network.
    parameters : the weights θ that are uncertain, see `select_parameters`.
    dtype : of the copy (default: the network's own).

    Attributes
    ----------
    network : the copy.
    parameter_names, parameter_shapes, parameter_slices : of the L uncertain parameter tensors, and
        their places among the P columns.
    assumed_names : of what was taken for the last layer before any inputs were seen; None where
        nothing has to be assumed.
    """

    assumed_names: tuple[str, ...] | None = None

    def __init__(
        self,
        net: nn.Module,
        parameters: ParameterSelection = "all",
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        names = list(select_parameters(net, parameters))
        self.network = frozen_copy(unwrapped(net)).to(dtype=dtype)
        self._choose(names)

    def _choose(self, names: list[str]) -> None:
        """Take these parameters as the uncertain ones."""
        self.parameter_names = names
        self.parameter_shapes = [p.shape for p in self.chosen().values()]
        stops = torch.tensor([s.numel() for s in self.parameter_shapes]).cumsum(0).tolist()
        self.parameter_slices = [slice(a, b) for a, b in zip([0, *stops], stops, strict=False)]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = copy.copy(self)
        twin.network = frozen_copy(self.network)
        return twin

    def chosen(self) -> dict[str, nn.Parameter]:
        """The uncertain parameters of the frozen copy, by name."""
        named = dict(self.network.named_parameters())
        return {name: named[name] for name in self.parameter_names}

    def slots(self) -> dict[str, Slot]:
        """The columns of each uncertain parameter."""
        columns = zip(self.parameter_names, self.parameter_slices, strict=True)
        return {name: Slot(i, s.start, s.stop) for i, (name, s) in enumerate(columns)}

    @property
    def inputs_first_names(self) -> tuple[str, ...]:
        """Names of the weights that are stored (inputs x outputs): tables, transposed convolutions.

        A tied weight is what the first module says that has it.
        """
        owners: dict[Tensor, nn.Module] = {}
        for module in self.network.modules():
            weight = module._parameters.get("weight")
            if weight is not None:
                owners.setdefault(weight, module)
        kinds = (nn.Embedding, nn.EmbeddingBag, _ConvTransposeNd)
        return tuple(name for name, p in self.chosen().items() if isinstance(owners.get(p), kinds))

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
        """The dtype of outputs and factors: the widest of the uncertain parameters'."""
        dtypes = [p.dtype for p in self.chosen().values()]
        return reduce(torch.promote_types, dtypes)

    @property
    def device(self) -> torch.device:
        """The device that the network is on."""
        return next(iter(self.chosen().values())).device

    def weights(self) -> Tensor:
        """θ*, flat (P,)."""
        return torch.cat([p.detach().reshape(-1) for p in self.chosen().values()])

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """Move or convert the frozen copy, in place."""
        self.network.to(device=device, dtype=dtype)
        return self

    def reaching(self, names: Iterable[str], x: Inputs) -> set[str]:
        """Those of some parameters that the outputs at `x` depend on, be it with a zero slope."""
        named = dict(self.network.named_parameters())
        weights: dict[Tensor, str] = {named[name]: name for name in names}
        try:
            for p in weights:
                p.requires_grad_(True)
            with torch.enable_grad():
                out = call_network(self.network, x)
        finally:
            for p in weights:
                p.requires_grad_(False)
        if not isinstance(out, Tensor):
            return set()  # refused elsewhere
        return {weights[t] for t in leaves(out) if t in weights}

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


def plain_copy(net: nn.Module) -> nn.Module:
    """A copy of `net` that shares nothing with it, graphs included."""
    memo: dict[int, Any] = {}
    for module in net.modules():
        for value in (*vars(module).values(), *module._buffers.values()):
            if isinstance(value, Tensor) and not value.is_leaf:
                # deepcopy refuses tensors with a graph, which weight_norm leaves behind
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(net, memo)


def frozen_copy(net: nn.Module) -> nn.Module:
    """A copy of `net` in eval mode that shares nothing with it and computes the same outputs."""
    net = _uncompiled(plain_copy(net)).eval()
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
    """Undo what only training wants: scaled and sparse gradients, renormalised rows."""
    table.sparse = table.scale_grad_by_freq = False
    if table.max_norm is not None:
        norms = torch.linalg.vector_norm(table.weight, table.norm_type, -1, keepdim=True)
        # the same formula as torch's, which does this to the rows it reads
        table.weight.mul_(torch.where(norms > table.max_norm, table.max_norm / (norms + 1e-7), 1.0))
        table.max_norm = None
