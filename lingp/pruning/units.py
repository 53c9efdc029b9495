"""Hidden units of a network: which weights are theirs, what they do, a network without some."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lingp.linearization import LinearizedNetwork

# modules that treat every unit alike and on its own
_ELEMENTWISE = (
    nn.AlphaDropout,
    nn.CELU,
    nn.Dropout,
    nn.ELU,
    nn.GELU,
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softshrink,
    nn.Softsign,
    nn.Tanh,
    nn.Tanhshrink,
    nn.Threshold,
)


@dataclass(frozen=True)
class Unit:
    """An output unit of a layer.

    Attributes
    ----------
    layer, index
        The layer's name and the unit's number in it.
    weights
        Places of its weights among the P weights, (k,).
    """

    layer: str
    index: int
    weights: Tensor

    def __str__(self) -> str:
        return f"{self.layer}[{self.index}]"


def chains(net: nn.Module) -> dict[str, str]:
    """Linear layers whose units only the next Linear layer of a Sequential sees: name to its name.

    Between the two lie only activations and dropout.
    """
    shared = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    modules = Counter(id(m) for _, m in net.named_modules(remove_duplicate=False))
    found: dict[str, str] = {}
    for prefix, module in net.named_modules():
        if not isinstance(module, nn.Sequential):
            continue
        before: str | None = None
        for name, leaf in _leaves(module, prefix):
            if type(leaf) is nn.Linear:
                whole = modules[id(leaf)] == 1 and all(
                    shared[id(p)] == 1 for p in leaf.parameters()
                )
                if before is not None and whole:
                    found[before] = name
                before = name if whole else None
            elif not isinstance(leaf, _ELEMENTWISE) or _watched(leaf):
                before = None
    return found


def hidden_units(linearized: LinearizedNetwork) -> tuple[list[Unit], dict[str, str]]:
    """Units whose loss leaves a network, and the chains they lie in.

    In chains of Linear layers a unit has the weights that enter and that leave it. A network
    without any has the rows of its weights, each with its bias, but those of the last layer.
    """
    network = linearized.network
    links = {
        a: b for a, b in chains(network).items() if f"{b}.weight" in linearized.parameter_names
    }
    places = {
        name: torch.arange(s.start, s.stop).view(shape)
        for name, s, shape in zip(
            linearized.parameter_names,
            linearized.parameter_slices,
            linearized.parameter_shapes,
            strict=True,
        )
    }
    units = []
    for a, b in links.items():
        for i in range(len(network.get_parameter(f"{a}.weight"))):
            parts = [places[f"{b}.weight"][:, i]]
            parts += [places[n][i].reshape(-1) for n in (f"{a}.weight", f"{a}.bias") if n in places]
            units.append(Unit(a, i, torch.cat(parts)))
    return (units, links) if links else (_rows(places, linearized), {})


def _rows(places: Mapping[str, Tensor], linearized: LinearizedNetwork) -> list[Unit]:
    weights = [
        n for n, t in places.items() if t.dim() > 1 and n not in linearized.inputs_first_names
    ]
    units = []
    for name in weights[:-1]:
        layer = name.rpartition(".")[0]
        bias = places.get(name.removesuffix("weight") + "bias" if name.endswith("weight") else "")
        for i, row in enumerate(places[name]):
            own = [row.reshape(-1)]
            if bias is not None and bias.shape == (len(places[name]),):
                own.append(bias[i : i + 1])
            units.append(Unit(layer or name, i, torch.cat(own)))
    if not units:
        raise ValueError(
            'what: "units", but the network has no hidden layer whose weights are uncertain; use '
            'what="weights"'
        )
    return units


@torch.no_grad()
def without(net: nn.Module, links: Mapping[str, str], removed: Sequence[Unit]) -> nn.Module:
    """A smaller copy of a network: units of chains are cut out of their layers.

    Parameters
    ----------
    net
        The network, which stays as it is.
    links
        The chains, as `chains` gives them.
    removed
        Units of the chains.
    """
    net = copy.deepcopy(net)
    for a, b in links.items():
        enters, leaves = net.get_submodule(a), net.get_submodule(b)
        gone = {unit.index for unit in removed if unit.layer == a}
        rows = range(len(net.get_parameter(f"{a}.weight")))
        kept = torch.tensor([i for i in rows if i not in gone])
        for layer, name, axis in (
            (enters, "weight", 0),
            (enters, "bias", 0),
            (leaves, "weight", 1),
        ):
            old = getattr(layer, name)
            if old is not None:
                new = old.detach().index_select(axis, kept.to(old.device)).clone()
                setattr(layer, name, nn.Parameter(new, old.requires_grad))
        for layer, size in ((enters, "out_features"), (leaves, "in_features")):
            setattr(layer, size, len(kept))
    return net


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Modules in the order a Sequential calls them; nested ones are entered."""
    for name, child in module.named_children():
        full = f"{prefix}.{name}" if prefix else name
        if isinstance(child, nn.Sequential) and not _watched(child):
            yield from _leaves(child, full)
        else:
            yield full, child


def _watched(module: nn.Module) -> bool:
    """Whether a module has hooks, which may look at what passes."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
