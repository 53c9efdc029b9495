"""Training on disk: written in one piece or not at all, read only by the training it is of."""

from __future__ import annotations

import os
from typing import Any

from lingp.runtime.files import PathLike, UnreadableError, read_whole, write_whole

FORMAT = "lingp training 2"


class CheckpointError(ValueError):
    """A checkpoint that can't be used."""


def write_checkpoint(path: PathLike, state: dict[str, Any], fingerprint: dict[str, str]) -> None:
    """Write so that a kill leaves the old file or the new one, never a part of it.

    Parameters
    ----------
    path
        The file, in a folder that exists.
    state
        Tensors, numbers and strings in dicts and lists: `torch.load(weights_only=True)` reads it.
    fingerprint
        What network, data and options this is of, by name.
    """
    write_whole(path, {"format": FORMAT, "fingerprint": fingerprint, "state": state})


def read_checkpoint(path: PathLike, fingerprint: dict[str, str]) -> dict[str, Any]:
    """The state in a file, on the CPU.

    Raises
    ------
    CheckpointError
        If the file isn't one of ours, or is of another training: says what differs.
    """
    try:
        found = read_whole(path, "cpu")
    except UnreadableError as error:
        raise CheckpointError(
            f"checkpoint: {os.fspath(path)} can't be read ({type(error.__cause__).__name__}); "
            "remove it, or give another path"
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
