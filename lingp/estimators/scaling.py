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
    no square leaves the range of float64.

    Attributes
    ----------
    magnitude
        Largest |x| of each column; 1 where all are 0.
    relative_mean, relative_scale
        Of x / magnitude.
    constant
        Which columns are constant, up to rounding.
    """

    magnitude: np.ndarray
    relative_mean: np.ndarray
    relative_scale: np.ndarray
    constant: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, *, divide_constants: bool = False) -> Self:
        """With mean and standard deviation (of N, not N - 1) of the rows of x, (N x ...).

        Parameters
        ----------
        x
            Rows.
        divide_constants
            Whether constant columns are divided by their magnitude; else they are only centred.
        """
        magnitude = np.abs(x).max(0)
        magnitude = np.where(magnitude > 0, magnitude, 1.0)
        relative = x / magnitude
        spread = relative.std(0)
        constant = spread <= _ROUNDING
        scale = np.where(constant, 1.0 if divide_constants else 1 / magnitude, spread)
        return cls(magnitude, relative.mean(0), scale, constant)

    @classmethod
    def identity(cls, x: np.ndarray) -> Self:
        """That leaves rows like those of x as they are."""
        ones = np.ones(x.shape[1:])
        return cls(ones, 0 * ones, ones, cls.of(x).constant)

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
