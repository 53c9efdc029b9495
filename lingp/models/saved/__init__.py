"""A conditioned network in a file and back."""

from lingp.models.saved.gp import load, save

__all__ = ["load", "save"]
