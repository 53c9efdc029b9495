"""What tells one training from another: short hashes of data and descriptions of options."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lingp.linearization.inputs import Inputs, input_tensors


def digest(*values: Inputs) -> str:
    """A hash of tensors: their values, shapes and dtypes."""
    found = hashlib.sha256()
    for value in values:
        keys = tuple(value) if isinstance(value, Mapping) else ()
        found.update(repr(keys).encode())
        for t in input_tensors(value):
            found.update(f"{tuple(t.shape)} {t.dtype}".encode())
            found.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


def describe_network(net: nn.Module) -> str:
    """A hash of a network's modules and of the names, shapes and dtypes of its tensors."""
    tensors = [(name, tuple(t.shape), str(t.dtype)) for name, t in net.state_dict().items()]
    text = re.sub(r" at 0x[0-9a-f]+", "", f"{net} {tensors}")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe_module(module: nn.Module) -> str:
    """A prior or likelihood with the values it starts from."""
    state = module.state_dict()
    values = digest(*(t.reshape(-1) for t in state.values()))
    return f"{type(module).__name__} {sorted(state)} {values}"


def describe(value: Any) -> str:
    """An option in words that are the same in the next process."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(describe(v) for v in value)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return (
            f"{type(value).__name__}({', '.join(f'{k}={describe(v)}' for k, v in fields.items())})"
        )
    return getattr(value, "__qualname__", type(value).__qualname__)
