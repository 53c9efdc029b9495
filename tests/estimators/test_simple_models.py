"""Where a linear model is as good as a network, it is taken."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize, stats
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression
from torch import nn

from lingp.estimators import LinearizedGPClassifier, LinearizedGPRegressor
from lingp.estimators.overfitting import overfitted

SHORT = {"steps": 400, "random_state": 0}


def noisy_line(num_rows=100, noise=2.0):
    """Ten inputs, of which the targets know one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, 10)) * np.logspace(-3, 3, 10)
    return X, X[:, 0] * 1e3 + 30 + noise * rng.normal(size=num_rows)


def kinds_of(model):
    return [type(m) for m in model.module_]


def dense(X, noise, precision):
    """Standardised inputs with a 1 for the bias, and the prior covariance of noisy targets."""
    z = np.column_stack([(X - X.mean(0)) / X.std(0), np.ones(len(X))])
    return z, z @ z.T / precision + noise * np.eye(len(z))


def hyperparameters(model):
    noise, precision = model.gp_.likelihood.noise, model.gp_.prior.precision
    return float(noise.detach()), float(precision.detach())


def test_linear_regression_on_a_noisy_line():
    X, y = noisy_line()
    model = LinearizedGPRegressor(**SHORT).fit(X, y)
    assert kinds_of(model) == [nn.Linear]
    network = LinearizedGPRegressor(hidden_layer_sizes=(50, 50), **SHORT).fit(X, y)
    assert model.log_marginal_likelihood_value_ > network.log_marginal_likelihood_value_
    noise, precision = hyperparameters(model)
    z, covariance = dense(X, noise, precision)
    t = (y - y.mean()) / y.std()
    solved = np.linalg.solve(covariance, np.column_stack([t, z @ z.T / precision]))
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, z @ z.T @ solved[:, 0] / precision * y.std() + y.mean())
    variance = np.diag(z @ z.T / precision - z @ z.T @ solved[:, 1:] / precision) + noise
    np.testing.assert_allclose(std, np.sqrt(variance) * y.std())

    def evidence(log_noise, log_precision):
        _, covariance = dense(X, math.exp(log_noise), math.exp(log_precision))
        return stats.multivariate_normal(np.zeros(len(t)), covariance).logpdf(t)

    found = evidence(math.log(noise), math.log(precision))
    value = model.log_marginal_likelihood_value_ + len(y) * math.log(y.std())
    assert found == pytest.approx(value, rel=1e-9)
    best = optimize.minimize(lambda p: -evidence(*p), [0.0, 0.0], method="Nelder-Mead")
    assert found > -best.fun - 1e-3  # nats, in all


def test_a_network_where_the_line_bends():
    X, y = noisy_line(noise=0.1)
    model = LinearizedGPRegressor(**SHORT).fit(X, y + 5 * np.sin(2e3 * X[:, 0]))
    assert len(kinds_of(model)) == 5
    assert len(model.history_) > 0


def test_without_noise_nothing_is_said_of_the_linear_model():
    X, y = noisy_line(60, 0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LinearizedGPRegressor(**SHORT).fit(X, y)
    assert caught == []
    assert model.score(X, y) > 0.9999


def test_logistic_regression_on_noisy_labels():
    X, score = noisy_line()
    y = score > 30
    model = LinearizedGPClassifier(**SHORT).fit(X, y)
    assert kinds_of(model) == [nn.Linear]
    # the network's outputs are the mode of the posterior: logistic regression with its penalty
    z = (X - X.mean(0)) / X.std(0)
    precision = float(model.gp_.prior.precision.detach())
    augmented = np.column_stack([z, np.ones(len(z))])  # the bias is penalised too
    mode = LogisticRegression(C=1 / precision, fit_intercept=False, tol=1e-10).fit(augmented, y)
    mean, _ = model.latent_mean_and_variance(X)
    np.testing.assert_allclose(mean, mode.decision_function(augmented), atol=0.01)


def test_a_network_where_classes_are_not_apart_by_a_line():
    X, y = make_moons(200, noise=0.15, random_state=0)
    model = LinearizedGPClassifier(**SHORT).fit(X, y)
    assert len(kinds_of(model)) == 5
    assert model.score(X, y) > 0.95


def test_sizes_that_are_given_are_kept():
    X, y = noisy_line(60)
    model = LinearizedGPRegressor(hidden_layer_sizes=(5,), **SHORT).fit(X, y)
    assert len(kinds_of(model)) == 3
    line = LinearizedGPRegressor(hidden_layer_sizes=(), **SHORT).fit(X, y)
    assert kinds_of(line) == [nn.Linear]
    own = nn.Sequential(nn.Linear(10, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    assert len(kinds_of(LinearizedGPRegressor(module=own, **SHORT).fit(X, y))) == 3


def test_rows_that_are_still_to_come_get_a_network():
    X, y = noisy_line()
    model = LinearizedGPRegressor(**SHORT).partial_fit(X, y)
    assert len(kinds_of(model)) == 5
    # as it was at the largest evidence all the same
    assert model.n_iter_ < 400


def test_linear_models_on_many_rows_are_fitted_to_all_of_them():
    X, y = noisy_line(3000)
    model = LinearizedGPRegressor(hidden_layer_sizes=(), random_state=0).fit(X, y)
    noise, precision = hyperparameters(model)
    z, _ = dense(X, noise, precision)
    weights = np.linalg.solve(
        z.T @ z / noise + precision * np.eye(11), z.T @ (y - y.mean()) / noise
    )
    np.testing.assert_allclose(model.predict(X), z @ weights + y.mean(), rtol=1e-8)


def made(evidence):
    """What training gives, as far as its evidence goes."""
    return SimpleNamespace(gp=SimpleNamespace(evidence=lambda: SimpleNamespace(value=evidence)))


@pytest.mark.parametrize(
    ("last", "best", "linear", "expected"),
    [
        (-50, -10, -100, False),  # 50 of the 90 nats that were won are left
        (-60, -10, -100, True),  # 40
        (-10, -10, -100, False),
        (-12, -10, -10, False),  # nothing won; 0.02 nats per output behind
        (-14, -10, -10, True),
        (-14, -14, -10, True),
        (-10, -10, -9, False),
    ],
)
def test_overfitting_is_losing_half_of_what_was_won_over_a_linear_model(
    last, best, linear, expected
):
    assert overfitted(made(last), made(best), made(linear), 100) == expected
