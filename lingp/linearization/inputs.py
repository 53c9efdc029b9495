"""Network inputs: a tensor, or a tuple, list or dict of tensors, all with the examples first."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


def map_inputs(fn: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """Apply `fn` to every tensor of an input."""
    if isinstance(x, Tensor):
        return fn(x)
    if isinstance(x, Mapping):
        return {key: fn(value) for key, value in x.items()}
    return type(x)(fn(value) for value in x)  # type: ignore[call-arg]


def joined_inputs(batches: Sequence[Inputs]) -> Inputs:
    """The rows of all batches as one input."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(list(batches))  # type: ignore[arg-type]
    keys = first.keys() if isinstance(first, Mapping) else range(len(first))
    parts = {key: torch.cat([batch[key] for batch in batches]) for key in keys}  # type: ignore[index]
    joined: Inputs = parts if isinstance(first, Mapping) else type(first)(parts.values())  # type: ignore
    return joined


def some_rows(x: Inputs, rows: slice) -> Inputs:
    """Some of the examples."""
    return map_inputs(lambda t: t[rows], x)


def input_tensors(x: Inputs) -> list[Tensor]:
    """All tensors of an input, after checking that it is one of the kinds we take."""
    if isinstance(x, Tensor):
        tensors: list[Any] = [x]
    elif isinstance(x, Mapping):
        tensors = list(x.values())
    elif type(x) in (tuple, list):
        tensors = list(x)
    else:
        tensors = []
    if not tensors or not all(isinstance(t, Tensor) and t.dim() > 0 for t in tensors):
        raise TypeError(
            f"x: got {type(x).__name__}; expected a tensor, or a tuple, list or dict of tensors, "
            "each with the examples on its first axis"
        )
    return tensors


def num_rows(x: Inputs) -> int:
    """Number of examples N, the same for every tensor of the input."""
    sizes = {t.shape[0] for t in input_tensors(x)}
    if len(sizes) != 1:
        raise ValueError(
            f"x: its tensors have {sorted(sizes)} rows; expected the same number in each"
        )
    return sizes.pop()


def signature(x: Inputs) -> tuple[Any, ...]:
    """What decides how a network runs on `x`, apart from the number of rows and the values."""
    keys = (
        tuple(x)
        if isinstance(x, Mapping)
        else type(x).__name__
        if not isinstance(x, Tensor)
        else ""
    )
    return (keys, *((tuple(t.shape[1:]), t.dtype) for t in input_tensors(x)))


def call_network(net: nn.Module, x: Inputs) -> Any:
    """`net(x)`, spreading a tuple or list over positional and a dict over keyword arguments.

    A network whose `forward` cannot take them spread gets the container as its one argument.
    """
    if isinstance(x, Tensor):
        return net(x)
    arguments = inspect.signature(net.forward)
    try:
        if isinstance(x, Mapping):
            arguments.bind(**x)
        else:
            arguments.bind(*x)
    except TypeError:
        return net(x)
    return net(**x) if isinstance(x, Mapping) else net(*x)


def probe_rows(x: Inputs, count: int) -> tuple[Inputs, int]:
    """`count` rows of `x`, no two alike if it has that many, and how many of them differ.

    Rows that have to be repeated are told apart by noise on their floating entries. The noise is
    small and keeps within the range of the data, so that a number used as an index stays one;
    integers are never made up.
    """
    places = distinct_rows(x, count)
    distinct = len(places)
    places = (places * count)[:count]
    generator = torch.Generator().manual_seed(0)

    def pick(t: Tensor) -> Tensor:
        t = t.detach()[torch.tensor(places, device=t.device)]
        if not t.is_floating_point() or distinct == count:
            return t
        shrink, shift = torch.rand(2, *t.shape, generator=generator, dtype=torch.float64).to(t)
        noisy = t * (1 - 0.02 * shrink) + 0.02 * shift * t.abs().max().clamp(1e-3, 1)
        return torch.cat([t[:distinct], noisy[distinct:]])

    return map_inputs(pick, x), distinct


def distinct_rows(x: Inputs, count: int, search: int = 64) -> list[int]:
    """Indices of up to `count` rows that differ, among the first `search`."""
    tensors = [t.detach() for t in input_tensors(x)]
    found: list[int] = []
    for n in range(min(num_rows(x), search)):
        if not any(all(torch.equal(t[n], t[m]) for t in tensors) for m in found):
            found.append(n)
            if len(found) == count:
                break
    return found
