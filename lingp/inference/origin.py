"""Where the rows of a changed training set come from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lingp.inference.training_set import TrainingSet


@dataclass(frozen=True)
class Origin:
    """Where a changed training set comes from: kept rows first, added ones after them.

    Attributes
    ----------
    kept
        Which rows of the old one are left, ascending, (n,).
    removed
        Which are not, (k,).
    removed_training
        The data of those; None if k = 0.
    """

    kept: Tensor
    removed: Tensor
    removed_training: TrainingSet | None
