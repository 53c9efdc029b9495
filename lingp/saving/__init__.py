"""A fitted `LinearizedGP` in one file that `torch.load(weights_only=True)` reads."""

from lingp.saving.errors import DataLeftOutError, SavedFileError
from lingp.saving.gp import SavedFile, load, save

__all__ = ["DataLeftOutError", "SavedFile", "SavedFileError", "load", "save"]
