"""Small immutable objects as tensors, numbers, strings, lists and dicts, and back.

A dataclass becomes a dict of its fields with its name under "class"; what else Python has and
`torch.load(weights_only=True)` has not is a dict with one key that says what it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

C = TypeVar("C", bound=type)

_CLASSES: dict[str, Any] = {}


def storable(cls: C) -> C:
    """Decorate a dataclass of which objects can be written to files, under the class's name."""
    if _CLASSES.setdefault(cls.__name__, cls).__qualname__ != cls.__qualname__:
        raise ValueError(f"{cls.__name__}: another class of this name is written to files already")
    return cls


def own(t: Tensor) -> Tensor:
    """The tensor without a graph, alone in its memory: a view would take all of it to the file."""
    t = t.detach()
    alone = t.untyped_storage().nbytes() == t.numel() * t.element_size()
    return t if alone else t.clone()


def to_plain(value: Any) -> Any:
    """The value as tensors, numbers, strings, lists and dicts.

    Raises
    ------
    TypeError
        For anything that isn't known here.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return own(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [to_plain(v) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [to_plain(v) for v in value]}
    if isinstance(value, Mapping):
        return {"mapping": {key: to_plain(v) for key, v in value.items()}}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Generator):
        return {"generator": {"device": str(value.device), "state": value.get_state()}}
    name = type(value).__name__
    if _CLASSES.get(name) is type(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        # a device is where the tensors are
        plain = {k: to_plain(v) for k, v in fields.items() if not isinstance(v, torch.device)}
        return {"class": name, **plain}
    raise TypeError(f"{name} can't be saved")


def from_plain(value: Any) -> Any:
    """What `to_plain` made it from; tensors are where they were loaded to."""
    if isinstance(value, list):
        return [from_plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "class" in value:
        fields = {name: from_plain(v) for name, v in value.items() if name != "class"}
        if value["class"] == "Factors":
            fields["device"] = fields["blocks"][0].tensors()[0].device
        return _CLASSES[value["class"]](**fields)
    ((kind, inner),) = value.items()
    return _KINDS[kind](inner)


def _generator(plain: dict[str, Any]) -> torch.Generator:
    made = torch.Generator(plain["device"])
    made.set_state(plain["state"].cpu())
    return made


_KINDS: dict[str, Any] = {
    "tuple": lambda inner: tuple(from_plain(v) for v in inner),
    "mapping": lambda inner: {key: from_plain(v) for key, v in inner.items()},
    "slice": lambda inner: slice(*inner),
    "dtype": lambda inner: getattr(torch, inner),
    "generator": _generator,
}
