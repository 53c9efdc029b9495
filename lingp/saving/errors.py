"""What can go wrong with a saved GP."""

from __future__ import annotations

from typing import NoReturn


class SavedFileError(ValueError):
    """A file that can't be loaded: not one of ours, damaged, newer, or of another network."""


class DataLeftOutError(RuntimeError):
    """Something takes the training data, which the file that was loaded doesn't have."""


def refuse(what: str) -> NoReturn:
    """Raise `DataLeftOutError` for something that takes the training data."""
    raise DataLeftOutError(
        f"{what}: takes the training data, and this LinearizedGP was loaded from a file without "
        "them; save it with save(path, include_data=True), or call fit(X, y) again"
    )
