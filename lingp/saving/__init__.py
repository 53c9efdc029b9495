"""What a file of a `LinearizedGP` is, and what can be wrong with one.

`LinearizedGP.save` writes it and `LinearizedGP.load` reads it; so does
`torch.load(weights_only=True)`.
"""

from lingp.saving.errors import DataLeftOutError, SavedFileError
from lingp.saving.file import SavedFile

__all__ = ["DataLeftOutError", "SavedFile", "SavedFileError"]
