"""Scikit-learn estimators: what makes each error of the page appear."""

import math

import numpy as np

import lingp
from error_cases.shared import rows, says


def arrays():
    X, y = rows()
    return X.numpy(), y.squeeze(1).numpy()


def regressor(**options):
    return lingp.LinearizedGPRegressor(steps=2, random_state=0, **options)


@says("Input X contains NaN.")
def _():
    X, y = arrays()
    X[0, 0] = math.nan
    regressor().fit(X, y)


@says("X has 2 features, but LinearizedGPRegressor is expecting 3 features as input")
def _():
    X, y = arrays()
    regressor().fit(X, y).predict(X[:, :2])


@says("This LinearizedGPRegressor instance is not fitted yet")
def _():
    regressor().predict(arrays()[0])


@says("could not convert string to float: 'red'")
def _():
    _, y = arrays()
    regressor().fit(np.array([["red", "1"]] * 20, dtype=object), y)


@says("y: it is the same in all rows, so that no noise can be learned")
def _():
    X, y = arrays()
    regressor().fit(X, 0 * y + 3)


@says("y: all labels are of one class, 'a'; a classifier needs at least two")
def _():
    X, _ = arrays()
    lingp.LinearizedGPClassifier(steps=2).fit(X, ["a"] * 20)


@says(
    "y: the labels ['c'] are not among the classes ['a', 'b']; name all of them in the first call"
)
def _():
    X, _ = arrays()
    model = lingp.LinearizedGPClassifier(steps=2).partial_fit(X, ["a", "b"] * 10)
    model.partial_fit(X, ["a", "c"] * 10)


@says("partial_fit after fit: the mean is that of the network, which is not trained any more")
def _():
    X, y = arrays()
    regressor(hidden_layer_sizes=(5,), heteroscedastic=True).fit(X, y).partial_fit(X, y)


@says("prefit: True, but there is no module")
def _():
    X, y = arrays()
    regressor(prefit=True).fit(X, y)


@says("validation_fraction: expected a number between 0 and 1")
def _():
    X, y = arrays()
    regressor(validation_fraction=15).fit(X, y)


@says("activation: expected one of 'gelu', 'identity', 'logistic', 'relu', 'silu', 'tanh', got")
def _():
    X, y = arrays()
    regressor(activation="swish").fit(X, y)
