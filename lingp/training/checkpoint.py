"""Training on disk: written in one piece or not at all, read only by the training it is of."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch

FORMAT = "lingp training 1"

PathLike = str | os.PathLike[str]


class CheckpointError(ValueError):
    """A checkpoint that can't be used."""


def write_checkpoint(path: PathLike, state: dict[str, Any], fingerprint: dict[str, str]) -> None:
    """Write so that a kill leaves the old file or the new one, never a part of it.

    Parameters
    ----------
    path
        Of the file; its folder exists.
    state
        Tensors, numbers and strings in dicts and lists: `torch.load(weights_only=True)` reads it.
    fingerprint
        What network, data and options this is of, by name.
    """
    path = Path(path)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save({"format": FORMAT, "fingerprint": fingerprint, "state": state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def read_checkpoint(path: PathLike, fingerprint: dict[str, str]) -> dict[str, Any]:
    """The state in a file, on the CPU.

    Raises
    ------
    CheckpointError
        If the file isn't one of ours, or is of another training: says what differs.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint: {os.fspath(path)} can't be read ({type(error).__name__}); remove it, or "
            "give another path"
        ) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(
            f"checkpoint: {os.fspath(path)} isn't a checkpoint of this version's training; remove "
            "it, or give another path"
        )
    theirs = found["fingerprint"]
    for name in [*fingerprint, *(n for n in theirs if n not in fingerprint)]:
        if theirs.get(name) != fingerprint.get(name):
            raise CheckpointError(
                f"checkpoint: {os.fspath(path)} is of another training: its {name} is "
                f"{theirs.get(name)}, here it is {fingerprint.get(name)}. Give another path, or "
                "resume=False to start anew and overwrite it"
            )
    state: dict[str, Any] = found["state"]
    return state
