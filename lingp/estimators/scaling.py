"""Columns in standard units, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import Self

_ROUNDING = 10 * np.finfo(np.float64).eps  # spread of a constant column, relative to its size


@dataclass(frozen=True)
class Standardizer:
    """z = (x - mean) / scale for each column; axes after the first are columns.

    Columns are divided by their largest magnitude before anything is computed of them, so that
    no square leaves the range of float64. A column that is constant, up to rounding, is centred
    and left: its scale is 1.

    Attributes
    ----------
    magnitude
        Largest |x| of each column; 1 where all are 0.
    relative_mean, relative_scale
        Of x / magnitude.
    """

    magnitude: np.ndarray
    relative_mean: np.ndarray
    relative_scale: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> Self:
        """With mean and standard deviation (of N, not N - 1) of the rows of x, (N x ...)."""
        magnitude = np.abs(x).max(0)
        magnitude = np.where(magnitude > 0, magnitude, 1.0)
        relative = x / magnitude
        spread = relative.std(0)
        varies = spread > _ROUNDING
        return cls(magnitude, relative.mean(0), np.where(varies, spread, 1 / magnitude))

    @classmethod
    def identity(cls, x: np.ndarray) -> Self:
        """That leaves rows like those of x as they are."""
        ones = np.ones(x.shape[1:])
        return cls(ones, 0 * ones, ones)

    @property
    def mean(self) -> np.ndarray:
        """Of each column, in its own units."""
        return self.relative_mean * self.magnitude

    @property
    def scale(self) -> np.ndarray:
        """Of each column, in its own units."""
        return self.relative_scale * self.magnitude

    def transform(self, x: np.ndarray) -> np.ndarray:
        """To standard units."""
        return (x / self.magnitude - self.relative_mean) / self.relative_scale

    def undo(self, z: np.ndarray) -> np.ndarray:
        """Back from standard units, (... x columns)."""
        return z * self.scale + self.mean
