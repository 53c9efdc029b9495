"""Yacht hydrodynamics: the drag of sailing yacht hulls, measured in a towing tank."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class RegressionData:
    """A regression data set with the train/test splits it is usually reported on.

    Attributes
    ----------
    X : ndarray of float64, (N x D)
        Inputs, one row per datum.
    y : ndarray of float64, (N,)
        Target.
    test_index : ndarray of int64, (n_splits x n_test)
        Row numbers of each split's test set.
    feature_names : tuple of str
        A name for each column of `X`.
    feature_units : tuple of str
        The unit of each column of `X`; ``"1"`` means dimensionless.
    target_name : str
        What `y` is.
    target_unit : str
        The unit of `y`; ``"1"`` means dimensionless.
    source : str
        Where the data come from; cite this.
    licence : str
        Under which terms the data may be used.
    """

    X: Array
    y: Array
    test_index: NDArray[np.int64]
    feature_names: tuple[str, ...]
    feature_units: tuple[str, ...]
    target_name: str
    target_unit: str
    source: str
    licence: str

    def split(self, index: int) -> tuple[Array, Array, Array, Array]:
        """Cut the data into the training and test sets of one standard split.

        Parameters
        ----------
        index : int
            Which split, from 0.

        Returns
        -------
        X_train, y_train, X_test, y_test : ndarray
            Training rows in the order of `X`, test rows in the order of `test_index`.

        Raises
        ------
        IndexError
            If there is no such split.
        """
        if not 0 <= index < len(self.test_index):
            raise IndexError(f"split {index} is not one of 0 to {len(self.test_index) - 1}")
        test = self.test_index[index]
        train = np.setdiff1d(np.arange(len(self.y)), test)
        return self.X[train], self.y[train], self.X[test], self.y[test]


def load_yacht() -> RegressionData:
    """Load the UCI Yacht Hydrodynamics data.

    Towing-tank tests of 22 sailing yacht hulls at 14 speeds each: from the shape of the hull and
    its speed, predict the residuary resistance (the drag that is not skin friction).

    Returns
    -------
    RegressionData
        308 rows, 6 features, the 20 standard 90/10 splits. Every quantity is dimensionless;
        the speed is given as the Froude number.

    Examples
    --------
    >>> from lingp.data import load_yacht
    >>> yacht = load_yacht()
    >>> yacht.X.shape, yacht.feature_names[5]
    ((308, 6), 'Froude number')
    """
    folder = files("lingp.data").joinpath
    with folder("yacht.csv").open(encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1)
    with folder("yacht_splits.csv").open(encoding="utf-8") as file:
        test_index = np.loadtxt(file, delimiter=",", dtype=np.int64)
    return RegressionData(
        X=table[:, :-1].copy(),
        y=table[:, -1].copy(),
        test_index=test_index,
        feature_names=(
            "longitudinal position of the centre of buoyancy",
            "prismatic coefficient",
            "length-displacement ratio",
            "beam-draught ratio",
            "length-beam ratio",
            "Froude number",
        ),
        feature_units=("1",) * 6,
        target_name="residuary resistance per unit weight of displacement",
        target_unit="1",
        source=(
            "J. Gerritsma, R. Onnink, A. Versluis: Yacht Hydrodynamics. "
            "UCI Machine Learning Repository, https://doi.org/10.24432/C5XG7R. "
            "Splits: J. M. Hernandez-Lobato and Y. Gal, as redistributed in cambridge-mlg/DUN."
        ),
        licence="data: CC BY 4.0; splits: MIT",
    )
