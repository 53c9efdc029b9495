"""Data: what makes each error of the page appear."""

import math

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import lingp
from error_cases.shared import fit, mlp, rows, says
from lingp import likelihoods


@says("X: expected numbers, got ndarray with elements of type <U5")
def _():
    fit(X=np.array([["a", "b", "three"]] * 20))


@says("X: has 2 NaN or infinite values, first in row 3; remove or impute them")
def _():
    X, _ = rows()
    X[3, 0], X[5, 1] = math.nan, math.inf
    fit(X=X)


@says(
    "y: has 1 NaN or infinite values, first in row 3; remove or impute them, or take NaN as not "
    'observed with fit(..., missing="nan")'
)
def _():
    _, y = rows()
    y[3] = math.nan
    fit(y=y)


@says("X and y: 20 rows of inputs, but 19 targets")
def _():
    fit(y=rows()[1][:19])


@says("y: has shape (N, 2), but the network's output asks for (N, 1)")
def _():
    fit(y=rows()[1].expand(-1, 2))


@says("y: missing; X is Tensor: call fit(X, y), or give a Dataset, a DataLoader or")
def _():
    lingp.LinearizedGP(mlp()).fit(rows()[0])


@says("X: DataLoader must give (inputs, targets) or (inputs, targets, weights); got list of 4")
def _():
    X, y = rows()
    lingp.LinearizedGP(mlp()).fit(DataLoader(TensorDataset(X, y, y, y)))


@says("X: gave no batches; there is nothing to fit")
def _():
    lingp.LinearizedGP(mlp()).fit(iter([]))


@says("X: has no rows")
def _():
    fit(X=torch.zeros(0, 3), y=torch.zeros(0, 1))


@says("sample_weight: expected one weight per row, (20,), got shape (19,)")
def _():
    fit(fit={"sample_weight": torch.ones(19)})


@says(
    "class_weight: needs one class label per row, but Gaussian with outputs of shape (1,) has none"
)
def _():
    fit(fit={"class_weight": "balanced"})


@says('missing: "nan", but AutodiffLikelihood can\'t have missing targets')
def _():
    own = likelihoods.AutodiffLikelihood(lambda y, f: -(y - f).square().sum())
    fit(likelihood=own, fit={"missing": "nan"})


@says("this LinearizedGP has no data yet: call fit(X, y) first")
def _():
    lingp.LinearizedGP(mlp()).predict(rows()[0])


@says("rows: expected numbers from 0 to 19, got 20 to 20")
def _():
    fit().remove_data([20])
