"""The warning of iterative methods that stop early."""

from __future__ import annotations


class ConvergenceWarning(UserWarning):
    """An iterative method stopped before its tolerance was reached."""
