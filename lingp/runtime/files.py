"""Files that `torch.load(weights_only=True)` reads: written in one piece or not at all."""

from __future__ import annotations

import os
import pickle
import secrets
from pathlib import Path
from typing import Any

import torch

PathLike = str | os.PathLike[str]

_UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, OSError)


class UnreadableError(ValueError):
    """A file that isn't one that torch wrote, or not all of it; its cause says more."""


def write_whole(path: PathLike, content: dict[str, Any]) -> int:
    """Write so that a kill leaves the old file or the new one, never a part of it.

    Parameters
    ----------
    path
        Of the file; its folder exists.
    content
        Tensors, numbers and strings in dicts and lists.

    Returns
    -------
    The number of bytes.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with open(part, "xb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target.stat().st_size


def read_whole(path: PathLike, map_location: Any = None) -> Any:
    """What is in a file.

    Raises
    ------
    UnreadableError
        If torch can't read it. Missing files and rights raise what `open` raises.
    """
    with open(path, "rb") as file:
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except _UNREADABLE as error:
            raise UnreadableError(str(error)) from error
