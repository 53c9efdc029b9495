"""Whether a network is built as the one that was saved."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn

from lingp.saving.errors import SavedFileError

_SHOWN = 4  # differences that are named


def describe(net: nn.Module) -> dict[str, Any]:
    """Modules with their options, and names and shapes of tensors.

    Parameters
    ----------
    net
        A frozen copy, so that wrappers are off and options that only training has don't count.
    """
    tensors = [*net.named_parameters(remove_duplicate=False), *net.named_buffers()]
    return {
        "modules": {name: _in_words(module) for name, module in net.named_modules()},
        "tensors": {name: list(t.shape) for name, t in tensors if isinstance(t, Tensor)},
    }


def check_same(saved: dict[str, Any], here: dict[str, Any], path: str) -> None:
    """Raise unless two descriptions are the same.

    Raises
    ------
    SavedFileError
        Names what differs.
    """
    found: list[str] = []
    for kind, what in (("tensors", "the shape of "), ("modules", "")):
        theirs, ours = saved[kind], here[kind]
        for name in [*theirs, *(n for n in ours if n not in theirs)]:
            label = f"{what}{name or 'the network'}"
            if name not in ours:
                found.append(f"{label} is {theirs[name]} in the file, and isn't in net")
            elif name not in theirs:
                found.append(f"{label} is {ours[name]} in net, and isn't in the file")
            elif theirs[name] != ours[name]:
                found.append(f"{label} is {theirs[name]} in the file, {ours[name]} in net")
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise SavedFileError(
            f"net: {path} is of a network built differently: {'; '.join(found[:_SHOWN])}{more}. "
            "Give a network of the same architecture; its weights don't matter"
        )


def _in_words(module: nn.Module) -> str:
    """A module's type and options, the same in the next process."""
    return re.sub(r" at 0x[0-9a-f]+", "", f"{type(module).__name__}({module.extra_repr()})")
