"""The regressor's numbers are those of `LinearizedGP` on data standardised by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.exceptions import DataConversionWarning, NotFittedError
from small_tables import network, regressor, table

from lingp.models import LinearizedGP
from lingp.training import TrainingPlan, train_with_evidence

NEW = slice(0, 7)
KINDS = [(None, False), (None, True), (2, False), (2, True)]  # targets, heteroscedastic


def by_hand(model, X, y):
    """The GP of the trained network, data standardised here; and how to undo it."""
    y = y.reshape(len(y), -1)
    x = torch.from_numpy((X - X.mean(0)) / X.std(0))
    z = torch.from_numpy((y - y.mean(0)) / y.std(0))
    mean = "network" if model.heteroscedastic else "refit"
    gp = LinearizedGP(model.module_, model.gp_.likelihood, prior=model.gp_.prior, mean=mean)
    return gp.fit(x, z, progress=False), x, y.mean(0), y.std(0)


def shaped(values, num_targets):
    values = np.asarray(values)
    return values[..., 0] if num_targets is None else values


@pytest.mark.parametrize(("num_targets", "heteroscedastic"), KINDS)
def test_predictions_are_those_of_hand_standardised_data(num_targets, heteroscedastic):
    X, y = table(num_targets=num_targets)
    model = regressor(heteroscedastic=heteroscedastic).fit(X, y)
    gp, x, center, scale = by_hand(model, X, y)
    expected = gp.predict(x[NEW])

    def undo(values):
        return shaped(values.numpy() * scale + center, num_targets)

    mean, std = model.predict(X[NEW], return_std=True)
    point = expected.median if heteroscedastic else expected.mean
    # the networks' inputs differ in the last bits
    np.testing.assert_allclose(mean, undo(point), rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X[NEW]), mean)
    for level in (0.5, 0.95):
        found = model.predict_interval(X[NEW], level)
        for end, other in zip(found, expected.interval(level), strict=True):
            np.testing.assert_allclose(end, undo(other), rtol=1e-8)
    if not heteroscedastic:
        np.testing.assert_allclose(
            std, shaped(expected.stddev.numpy() * scale, num_targets), rtol=1e-8
        )


@pytest.mark.parametrize("num_targets", [None, 2])
def test_covariance_is_that_of_targets_between_rows(num_targets):
    X, y = table(num_targets=num_targets)
    model = regressor().fit(X, y)
    gp, x, _, scale = by_hand(model, X, y)
    n = len(x[NEW])
    joint = gp.predict_joint(x[NEW]).covariance.reshape(n, len(scale), n, len(scale))
    expected = np.stack([joint[:, t, :, t].numpy() * s**2 for t, s in enumerate(scale)], -1)
    mean, cov = model.predict(X[NEW], return_cov=True)
    np.testing.assert_allclose(cov, shaped(expected, num_targets), rtol=1e-8)
    _, std = model.predict(X[NEW], return_std=True)
    np.testing.assert_allclose(np.einsum("nn...->n...", cov), std**2, rtol=1e-10)
    assert mean.shape == std.shape == y[NEW].shape


def test_heteroscedastic_spread_is_that_of_the_interval_and_correlations_are_of_the_normal():
    X, y = table()
    model = regressor(heteroscedastic=True).fit(X, y)
    lower, upper = model.predict_interval(X[NEW], math.erf(math.sqrt(0.5)))
    _, std = model.predict(X[NEW], return_std=True)
    np.testing.assert_allclose(std, (upper - lower) / 2, rtol=1e-10)
    _, cov = model.predict(X[NEW], return_cov=True)
    latent = model.gp_.posterior(model._tensor(X[NEW]))
    n = len(X[NEW])
    dense = latent.covariance_matrix.reshape(n, 2, n, 2)[:, 0, :, 0]
    variance = 1 / (0.1 + torch.nn.functional.softplus(latent.mean[:, 1]))
    normal = (variance[:, None] * dense * variance + torch.diag(variance)).numpy()
    d = np.sqrt(np.diag(normal))
    np.testing.assert_allclose(cov, normal / d[:, None] / d * std[:, None] * std, rtol=1e-8)


def test_noise_that_varies_is_bounded_in_units_of_the_targets():
    X, y = table()
    model = regressor(heteroscedastic=True).fit(X, y)
    assert model.gp_.likelihood.floor == 0.1
    # in standard units: ten times the variance of all targets
    f = torch.tensor([[0.0, -1e9]]).double()
    assert model.gp_.likelihood.conditional_variance(f).item() == pytest.approx(10, rel=1e-12)
    # what gives precisions of its own is believed
    own = regressor(heteroscedastic=True, module=network(2), steps=2).fit(X, y)
    raw = regressor(heteroscedastic=True, standardize=False, steps=2).fit(X / 1e4, y / 1e3)
    assert own.gp_.likelihood.floor == raw.gp_.likelihood.floor == 0


def test_normal_intervals_and_standard_deviations_agree():
    X, y = table()
    model = regressor().fit(X, y)
    mean, std = model.predict(X[NEW], return_std=True)
    lower, upper = model.predict_interval(X[NEW], level=0.9)
    np.testing.assert_allclose(upper, mean + stats.norm.ppf(0.95) * std, rtol=1e-12)
    np.testing.assert_allclose(lower, mean - stats.norm.ppf(0.95) * std, rtol=1e-12)


@pytest.mark.parametrize("num_targets", [None, 2])
def test_samples_have_the_predictive_moments(num_targets):
    X, y = table(num_targets=num_targets)
    model = regressor().fit(X, y)
    draws = model.sample_y(X[NEW], 4000, random_state=1)
    assert draws.shape == (*y[NEW].shape, 4000)
    mean, cov = model.predict(X[NEW], return_cov=True)
    variance = np.einsum("nn...->n...", cov)
    error = np.sqrt(variance / 4000)
    assert (np.abs(draws.mean(-1) - mean) < 5 * error).all()
    first = draws if num_targets is None else draws[:, 0]
    covariance = cov if num_targets is None else cov[..., 0]
    d = np.diag(covariance)
    # of a covariance of normals: (C_ij² + C_ii C_jj) / S
    error = np.sqrt((covariance**2 + d[:, None] * d) / 4000)
    assert (np.abs(np.cov(first) - covariance) < 5 * error).all()


def test_heteroscedastic_samples_have_the_predictive_quantiles():
    X, y = table()
    model = regressor(heteroscedastic=True).fit(X, y)
    draws = model.sample_y(X[:3], 4000)
    lower, upper = model.predict_interval(X[:3], level=0.8)
    error = math.sqrt(0.1 * 0.9 / 4000)
    assert (np.abs((draws < lower[:, None]).mean(1) - 0.1) < 5 * error).all()
    assert (np.abs((draws > upper[:, None]).mean(1) - 0.1) < 5 * error).all()


def test_samples_repeat_with_their_seed_and_differ_with_another():
    X, y = table()
    model = regressor().fit(X, y)
    np.testing.assert_array_equal(model.sample_y(X, 2), model.sample_y(X, 2))
    assert (model.sample_y(X, 2) != model.sample_y(X, 2, random_state=1)).all()
    assert model.sample_y(X[:1]).shape == (1, 1)


@pytest.mark.parametrize("num_targets", [None, 2])
def test_evidence_is_a_density_in_the_units_of_the_data(num_targets):
    X, y = table(num_targets=num_targets)
    model = regressor().fit(X, y)
    gp, _, _, scale = by_hand(model, X, y)
    expected = gp.evidence().value - len(y) * np.log(scale).sum()
    assert model.log_marginal_likelihood_value_ == pytest.approx(expected, rel=1e-9)
    # another unit: each target's density is divided by the factor
    other = regressor().fit(X, 1000 * y)
    moved = y.size * math.log(1000)
    assert other.log_marginal_likelihood_value_ == pytest.approx(expected - moved, abs=1e-6)


def test_units_of_the_data_do_not_matter():
    X, y = table()
    # powers of two: the same bits in standard units
    one, other = regressor().fit(X, y), regressor().fit(X * 2.0**40, y * 2.0**-30)
    np.testing.assert_array_equal(one.predict(X), other.predict(X * 2.0**40) * 2.0**30)
    lower, _ = one.predict_interval(X)
    np.testing.assert_array_equal(lower, other.predict_interval(X * 2.0**40)[0] * 2.0**30)


def test_standardize_false_leaves_data_as_they_are():
    X, y = table()
    x, z = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    raw = regressor(standardize=False).fit(x, z)
    inside = regressor().fit(X, y)
    np.testing.assert_allclose(raw.predict(x) * y.std() + y.mean(), inside.predict(X), rtol=1e-8)
    units = len(y) * math.log(y.std())
    found = raw.log_marginal_likelihood_value_ - units
    assert found == pytest.approx(inside.log_marginal_likelihood_value_, rel=1e-9)


def test_training_is_that_of_train_with_evidence():
    X, y = table()
    net = network()
    model = regressor(module=net, steps=100, random_state=3).fit(X, y)
    x, z = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    plan = TrainingPlan(steps=100, burn_in=20)
    expected = train_with_evidence(net, torch.from_numpy(x), z, plan=plan, progress=False)
    # full batches: no random numbers
    assert len(model.history_) == len(expected.history)
    assert model.n_iter_ == 100
    last, other = model.history_[-1].evidence, expected.history[-1].evidence
    assert last == pytest.approx(other, rel=1e-6)


def test_a_network_that_overfits_goes_back_to_its_largest_evidence():
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(60, 8)), rng.normal(size=60)
    options = {"hidden_layer_sizes": (50, 50), "steps": 400, "random_state": 0}
    model = regressor(**options).fit(X, X[:, 0] + 2 * noise)
    evidences = {step.step: step.evidence for step in model.history_}
    assert evidences[400] < max(evidences.values()) - 0.2 * 60
    assert evidences[model.n_iter_] == max(evidences.values())
    # and one that doesn't is used as it is at the end
    X = rng.normal(size=(150, 2))
    model = regressor(**options).fit(X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=150))
    assert model.n_iter_ == 400


@pytest.mark.parametrize(("num_targets", "heteroscedastic"), KINDS)
def test_partial_fit_is_add_data(num_targets, heteroscedastic):
    X, y = table(num_targets=num_targets)
    options = {"heteroscedastic": heteroscedastic, "mean": "refit"}
    model = regressor(**options).fit(X[:20], y[:20])
    expected, scaler = model.gp_, model.y_scaler_
    streamed = regressor(**options).partial_fit(X[:20], y[:20])
    np.testing.assert_array_equal(streamed.predict(X), model.predict(X))
    for rows in (slice(20, 25), slice(25, 30)):
        assert streamed.partial_fit(X[rows], y[rows]) is streamed
        z = scaler.transform(y[rows].reshape(5, -1))
        expected.add_data(model._tensor(X[rows]), torch.from_numpy(z))
    np.testing.assert_array_equal(streamed.predict(X), model.predict(X))
    assert streamed.gp_.laplace.training.num_data == 30
    units = 30 * np.log(scaler.scale).sum()
    evidence = expected.evidence().value - units
    assert streamed.log_marginal_likelihood_value_ == pytest.approx(evidence, rel=1e-12)


def test_rows_that_come_later_move_the_mean():
    X, y = table()
    for heteroscedastic in (False, True):
        model = regressor(heteroscedastic=heteroscedastic).partial_fit(X[:20], y[:20])
        before = model.predict(X[20:])
        model.partial_fit(X[20:], y[20:])
        assert np.abs(model.predict(X[20:]) - y[20:]).mean() < np.abs(before - y[20:]).mean()


def test_one_column_of_targets_is_one_target():
    X, y = table()
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        model = regressor().fit(X, y[:, None])
    np.testing.assert_array_equal(model.predict(X), regressor().fit(X, y).predict(X))


def test_a_constant_target_does_not_spoil_the_others():
    X, y = table()
    both = np.column_stack([y, np.full_like(y, 7e-5)])
    with pytest.warns(UserWarning, match=r"targets \[1\] are the same in all rows"):
        model = regressor(steps=200).fit(X, both)
    assert model.n_iter_ == 200
    mean, std = model.predict(X, return_std=True)
    assert np.corrcoef(mean[:, 0], y)[0, 1] > 0.9
    assert (np.abs(mean[:, 1] - 7e-5) < 3 * std[:, 1]).all()
    assert (std[:, 1] < 0.2 * 7e-5).all()


@pytest.mark.parametrize("value", [5.0, 0.0, -1e-8])
def test_constant_targets_are_predicted(value):
    X, y = table()
    with pytest.warns(UserWarning, match="it is the same in all rows"):
        model = regressor().fit(X, np.full_like(y, value))
    mean, std = model.predict(X, return_std=True)
    assert (np.abs(mean - value) < 3 * std).all()
    assert (std < 0.3 * (abs(value) or 1)).all()


def test_one_row_and_two_equal_rows():
    X, y = table()
    for rows in ([0], [0, 0]):
        with pytest.warns(UserWarning, match="the same in all rows"):
            model = regressor().fit(X[rows], y[rows])
        mean, std = model.predict(X[:1], return_std=True)
        assert abs(mean[0] - y[0]) < 3 * std[0]


def test_errors_say_what_to_do():
    X, y = table()
    model = regressor()
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.fit(X, y)
    with pytest.raises(RuntimeError, match="At most one of return_std or return_cov"):
        model.predict(X, return_std=True, return_cov=True)
    with pytest.raises(
        ValueError, match="X has 2 features, but LinearizedGPRegressor is expecting"
    ):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.predict(np.where(X[0, 0] == X, np.nan, X))
    with pytest.raises(ValueError, match="Input y contains NaN"):
        model.fit(X, np.where(y == y[0], np.nan, y))
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.fit(np.where(X[0, 0] == X, np.inf, X), y)
    with pytest.raises(ValueError, match="level: expected a probability"):
        regressor().fit(X, y).predict_interval(X, level=95)
    model = regressor().fit(X, y)
    with pytest.raises(ValueError, match="y: has 2 targets, but the first call had 1"):
        model.partial_fit(X, np.column_stack([y, y]))
