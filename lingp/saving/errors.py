"""What can go wrong with a saved GP."""

from __future__ import annotations


class SavedFileError(ValueError):
    """A file that can't be loaded: not one of ours, damaged, newer, or of another network."""


class DataLeftOutError(RuntimeError):
    """Something needs the training data, which the file that was loaded doesn't have."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} needs the training data, and this LinearizedGP was loaded from a file without "
            "them: save it with save(path, include_data=True), or call fit(X, y) again"
        )
