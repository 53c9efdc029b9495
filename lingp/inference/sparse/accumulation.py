"""Ψᵀ Λ Ψ as a sum over data: rows that come are added to it, rows that go are subtracted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference.factorize import largest_eigenvalue, rounding_loss
from lingp.inference.origin import Origin
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot

_LARGEST_LOSS = 1e-6
"""What subtraction may lose of an eigenvalue 1 of I + Ψᵀ Λ Ψ; past it, the sum is made anew."""

SumOver = Callable[[TrainingSet, CurvatureRoot], Tensor]


@dataclass(frozen=True)
class _Sum:
    root: CurvatureRoot
    gram: Tensor


class Accumulation:
    """The sum for the last curvature root that was asked for.

    Parameters
    ----------
    sum_over
        Makes Ψᵀ Λ Ψ over all rows of a training set, one pass.
    """

    def __init__(self, sum_over: SumOver) -> None:
        self._sum_over = sum_over
        self._last: _Sum | None = None
        self._before: tuple[_Sum, Origin] | None = None

    def get(self, training: TrainingSet, root: CurvatureRoot) -> Tensor:
        """Ψᵀ Λ Ψ, (m x m), without a graph; by the cheapest way there is."""
        if self._last is None or not _same(self._last.root, root):
            gram = self._updated(training, root)
            if gram is None:
                gram = self._sum_over(training, root)
            self._last, self._before = _Sum(root.detach(), gram), None
        return self._last.gram

    def carried_over(self, origin: Origin, sum_over: SumOver) -> Accumulation:
        """The same for a changed training set: what is known of kept rows goes along."""
        moved = Accumulation(sum_over)
        if self._last is not None:
            moved._before = self._last, origin
        return moved

    def _updated(self, training: TrainingSet, root: CurvatureRoot) -> Tensor | None:
        """The old sum with added and without removed rows; None where that isn't the new one."""
        if self._before is None:
            return None
        old, origin = self._before
        num_kept = len(origin.kept)
        if not _same(root.rows(slice(0, num_kept)), old.root.rows(origin.kept)):
            return None  # the curvature of kept rows has changed as well
        gram = old.gram
        if origin.removed_training is not None:
            loss = rounding_loss(largest_eigenvalue(gram), len(gram), gram.dtype)
            if not loss < _LARGEST_LOSS:
                return None
            root_there = old.root.rows(origin.removed)
            gram = gram - self._sum_over(origin.removed_training, root_there)
        if training.num_data > num_kept:
            added = torch.arange(num_kept, training.num_data)
            gram = gram + self._sum_over(training.subset(added), root.rows(added))
        return gram


def _same(a: CurvatureRoot, b: CurvatureRoot) -> bool:
    return (
        type(a) is type(b)
        and a.num_data == b.num_data
        and all(map(torch.equal, a.tensors(), b.tensors()))
    )
