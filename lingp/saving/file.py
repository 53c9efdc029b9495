"""The file: written in one piece or not at all, and recognised when it is read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lingp.runtime.files import PathLike, UnreadableError, read_whole, write_whole
from lingp.runtime.memory import format_bytes
from lingp.runtime.version import __version__
from lingp.saving.errors import SavedFileError

KIND = "lingp LinearizedGP"
VERSION = 2
"""Of the format; what an older lingp can't read gets the next number."""

MapLocation = Any


@dataclass(frozen=True)
class SavedFile:
    """What `save` wrote.

    Attributes
    ----------
    path
        Of the file.
    num_bytes
        Its size.
    training_data
        What of the training data is in it, in words.
    """

    path: str
    num_bytes: int
    training_data: str

    def __str__(self) -> str:
        return f"{self.path} ({format_bytes(self.num_bytes)}), {self.training_data}"


def write(path: PathLike, content: dict[str, Any]) -> int:
    """Write so that a kill leaves the old file or the new one, never a part of it.

    Returns
    -------
    The number of bytes.

    Raises
    ------
    FileNotFoundError
        If the folder doesn't exist.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path: the folder {target.parent} doesn't exist; make it first")
    about = {"kind": KIND, "version": VERSION, "lingp": __version__}
    return write_whole(target, {**about, **content})


def read(path: PathLike, map_location: MapLocation) -> dict[str, Any]:
    """The content of a file that `write` made.

    Raises
    ------
    SavedFileError
        If it is damaged, something else, of a newer version or of a device that isn't here.
    """
    where = os.fspath(path)
    try:
        found = read_whole(path, map_location)
    except UnreadableError as error:
        if "map_location" in str(error) or "torch.cuda.is_available()" in str(error):
            raise SavedFileError(
                f"path: {where} has tensors of a device that isn't here; load it with "
                'map_location="cpu"'
            ) from error
        raise SavedFileError(
            f"path: {where} can't be read: it is damaged or cut off, or isn't a file that "
            f"LinearizedGP.save made ({type(error.__cause__).__name__})"
        ) from error
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise SavedFileError(
            f"path: {where} isn't a file that LinearizedGP.save made: it has {_in_words(found)}"
        )
    if found["version"] > VERSION:
        raise SavedFileError(
            f"path: {where} has format {found['version']}, written by lingp {found['lingp']}; this "
            f"is lingp {__version__}, which reads formats up to {VERSION}: install a newer "
            "one"
        )
    return found


def _in_words(found: Any) -> str:
    """What another file has in it."""
    if not isinstance(found, dict):
        return f"a {type(found).__name__}"
    if "format" in found:
        return f"{found['format']!r}, as a checkpoint of training has"
    names = [str(name) for name in list(found)[:3]]
    return f"a dict with {', '.join(names) or 'nothing'}{', ...' if len(found) > 3 else ''}"
