"""A conditioned network in a file and back."""

from lingp.models.saved.gp import SavedGP, save

__all__ = ["SavedGP", "save"]
