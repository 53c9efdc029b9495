"""Which weights are uncertain: parameter selection by name, pattern, predicate or list."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parameter import is_lazy

ParameterSelection = str | Callable[[str, nn.Parameter], bool] | Iterable[str | nn.Parameter]


def select_parameters(
    net: nn.Module, parameters: ParameterSelection = "all"
) -> dict[str, nn.Parameter]:
    """Parameters of `net` by selection, in the network's own order; tied weights count once.

    Parameters
    ----------
    net : the network.
    parameters : one of

        - ``"all"``: every parameter that requires grad;
        - ``"last_layer"``: those of the last submodule that has any parameter requiring grad
          (last in the order the submodules were registered; a `LinearizedNetwork` passes over
          submodules that its outputs don't depend on, once it has seen inputs);
        - another string: a shell pattern on parameter names, such as ``"head.*"`` or ``"*.bias"``;
        - a predicate ``(name, parameter) -> bool``;
        - a list of names or of `Parameter` objects.

    Returns
    -------
    dict from name to parameter.

    Raises
    ------
    ValueError
        If nothing is selected, or a listed name or parameter is not in the network.
    TypeError
        If `parameters` is none of the above.
    """
    net = unwrapped(net)
    named = {plain_name(name): p for name, p in net.named_parameters()}
    if isinstance(parameters, str):
        chosen = _by_string(net, named, parameters)
    elif callable(parameters):
        chosen = {name: p for name, p in named.items() if parameters(name, p)}
    elif isinstance(parameters, Iterable):
        chosen = _by_list(net, named, list(parameters))
    else:
        raise TypeError(
            f"parameters: got {type(parameters).__name__}; expected 'all', 'last_layer', a name "
            "pattern, a predicate (name, parameter) -> bool, or a list of names or parameters"
        )
    unfinished = [name for name, p in chosen.items() if is_lazy(p)]
    if unfinished:
        raise ValueError(
            f"net: the shapes of {unfinished} are not known yet; run the network once on its inputs"
        )
    fixed = [name for name, p in chosen.items() if not p.is_floating_point()]
    if fixed:
        warnings.warn(
            f"the parameters {fixed} are not real numbers; they are held fixed", stacklevel=3
        )
    chosen = {name: p for name, p in chosen.items() if p.is_floating_point()}
    if not chosen:
        raise ValueError(
            f"parameters={parameters!r} selects none of the network's {len(named)} parameters "
            f"({', '.join(list(named)[:6]) or 'it has none'}...); 'all' takes those with "
            "requires_grad=True"
        )
    return chosen


def layers(net: nn.Module) -> list[list[str]]:
    """Names of the parameters of each submodule that require grad, the last submodule first."""
    net = unwrapped(net)
    names = {p: plain_name(name) for name, p in net.named_parameters() if p.requires_grad}
    own = [module.parameters(recurse=False) for module in net.modules()]
    found = [[names[p] for p in parameters if p in names] for parameters in own]
    return [layer for layer in reversed(found) if layer]


def unwrapped(net: nn.Module) -> nn.Module:
    """The network itself, out of the wrappers for compilation and parallel work."""
    net = getattr(net, "_orig_mod", net)
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    return net.module if isinstance(net, wrappers) else net


def plain_name(name: str) -> str:
    """A parameter's name without what compilation puts into it."""
    return name.replace("_orig_mod.", "")


def _by_string(
    net: nn.Module, named: dict[str, nn.Parameter], text: str
) -> dict[str, nn.Parameter]:
    if text == "all":
        return {name: p for name, p in named.items() if p.requires_grad}
    if text == "last_layer":
        names = next(iter(layers(net)), [])
        return {name: p for name, p in named.items() if name in names}
    return {name: p for name, p in named.items() if fnmatchcase(name, text)}


def _by_list(
    net: nn.Module, named: dict[str, nn.Parameter], wanted: list[str | nn.Parameter]
) -> dict[str, nn.Parameter]:
    aliases = {
        alias: p
        for name, p in net.named_parameters(remove_duplicate=False)
        for alias in (name, plain_name(name))
    }
    ids = {id(p) for p in named.values()}
    chosen: set[int] = set()
    for item in wanted:
        parameter = aliases.get(item) if isinstance(item, str) else item
        if parameter is None or id(parameter) not in ids:
            what = (
                repr(item) if isinstance(item, str) else f"a parameter of shape {tuple(item.shape)}"
            )
            raise ValueError(
                f"parameters: {what} is not in the network; names are {list(named)[:12]}"
            )
        chosen.add(id(parameter))
    return {name: p for name, p in named.items() if id(p) in chosen}
