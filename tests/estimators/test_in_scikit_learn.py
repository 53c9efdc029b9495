"""Pipelines, searches, copies, files, data frames; and nothing global changes."""

from __future__ import annotations

import io
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from small_tables import classifier, labelled, network, regressor, table

from lingp import Iterative, Sparse
from lingp.priors import Layerwise


def through_pickle(model):
    return pickle.loads(pickle.dumps(model))


def through_joblib(model):
    file = io.BytesIO()
    joblib.dump(model, file)
    return joblib.load(io.BytesIO(file.getvalue()))


FITTED = {
    "plain": {},
    "heteroscedastic": {"heteroscedastic": True, "mean": "refit"},
    "module": {"module": network()},
    "prefit": {"module": network(), "prefit": True, "mean": "refit"},
    "function space": {"inference": "function_space"},
    "weight space": {"inference": "weight_space"},
    "sparse": {"inference": Sparse(num_inducing=10)},
    "iterative": {"inference": Iterative()},
    "layerwise": {"prior": Layerwise()},
}


@pytest.mark.parametrize("copied", [through_pickle, through_joblib])
@pytest.mark.parametrize("name", FITTED)
def test_a_copy_predicts_the_same_bits(name, copied):
    X, y = table()
    model = regressor(**FITTED[name]).fit(X, y)
    other = copied(model)
    for found, expected in zip(
        other.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(other.sample_y(X, 2), model.sample_y(X, 2))
    assert other.log_marginal_likelihood_value_ == model.log_marginal_likelihood_value_
    # also after more data
    for each in (model, other):
        each.partial_fit(X[:3], y[:3])
    np.testing.assert_array_equal(other.predict(X), model.predict(X))


@pytest.mark.parametrize("copied", [through_pickle, through_joblib])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_copied_classifier_predicts_the_same_bits(num_classes, copied):
    X, y = labelled(num_classes=num_classes)
    model = classifier().fit(X, y)
    other = copied(model)
    np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(other.predict(X), model.predict(X))


def test_a_clone_is_fitted_to_the_same_bits():
    X, y = table()
    prior = Layerwise()
    before = pickle.dumps(prior)
    model = regressor(module=network(), prior=prior).fit(X, y)
    assert pickle.dumps(prior) == before
    twin = clone(model)
    assert not hasattr(twin, "gp_")
    assert twin.module is not model.module
    np.testing.assert_array_equal(twin.fit(X, y).predict(X), model.predict(X))
    np.testing.assert_array_equal(model.fit(X, y).predict(X), twin.predict(X))


def test_the_seed_decides():
    X, y = table()
    model = regressor(random_state=1)
    once, again = model.fit(X, y).predict(X), model.fit(X, y).predict(X)
    np.testing.assert_array_equal(once, again)
    assert (regressor(random_state=2).fit(X, y).predict(X) != once).all()
    free = regressor(random_state=None)
    assert (free.fit(X, y).predict(X) != free.fit(X, y).predict(X)).all()
    numbers = np.random.RandomState(1)
    shared = regressor(random_state=numbers)
    np.testing.assert_array_equal(shared.fit(X, y).predict(X), once)
    assert (shared.fit(X, y).predict(X) != once).all()


@pytest.mark.parametrize("seed", [0, None])
def test_nothing_global_changes(seed):
    X, y = table()
    before = (
        np.random.get_state()[1].copy(),  # noqa: NPY002
        torch.get_rng_state(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )
    model = regressor(random_state=seed).fit(X, y)
    model.predict(X, return_cov=True)
    model.sample_y(X, 2, random_state=seed)
    model.partial_fit(X, y)
    classifier(random_state=seed).fit(*labelled()).predict_proba(X)
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[1])
    assert torch.get_default_dtype() == before[2]
    assert torch.get_num_threads() == before[3]


def test_the_default_dtype_does_not_matter():
    X, y = table()
    expected = regressor().fit(X, y).predict(X)
    torch.set_default_dtype(torch.float64)
    try:
        found = regressor().fit(X, y).predict(X)
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(found, expected)


def test_in_a_pipeline():
    X, y = table()
    pipe = make_pipeline(StandardScaler(), PolynomialFeatures(2), regressor())
    mean, std = pipe.fit(X, y).predict(X, return_std=True)
    assert mean.shape == std.shape == (30,)
    assert pipe.score(X, y) > 0.5
    outer = TransformedTargetRegressor(regressor(), func=np.log, inverse_func=np.exp)
    assert outer.fit(X, y).score(X, y) > 0.5
    assert cross_val_predict(classifier(), *labelled(), cv=2, method="predict_proba").shape == (
        40,
        3,
    )


def test_in_a_grid_search():
    X, y = table()
    grid = {"hidden_layer_sizes": [(), (4,)], "heteroscedastic": [False, True]}
    search = GridSearchCV(regressor(), grid, cv=2).fit(X, y)
    assert search.best_params_["hidden_layer_sizes"] in grid["hidden_layer_sizes"]
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(X).shape == (30,)


def test_data_frames():
    X, y = table()
    frame = pd.DataFrame(X, columns=["mass", "height", "age"])
    model = regressor().fit(frame, pd.Series(y))
    assert list(model.feature_names_in_) == ["mass", "height", "age"]
    np.testing.assert_array_equal(model.predict(frame), regressor().fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names should match those that were passed"):
        model.predict(frame[["age", "height", "mass"]])
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.predict(X)
    pipe = make_pipeline(StandardScaler(), regressor()).set_output(transform="pandas")
    assert list(pipe.fit(frame, y)[-1].feature_names_in_) == ["mass", "height", "age"]
    labels = pd.Series(labelled(30)[1], dtype="category")
    assert set(classifier().fit(frame, labels).classes_) == set(labels)


def test_rows_of_other_types():
    X = np.random.default_rng(0).integers(0, 9, (30, 3))
    y = X @ [1, 2, 3]
    expected = regressor().fit(X.astype(float), y.astype(float)).predict(X.astype(float))
    np.testing.assert_array_equal(regressor().fit(X, y).predict(X), expected)
    single = regressor().fit(X.astype(np.float32), y.astype(np.float32))
    np.testing.assert_array_equal(single.predict(X), expected)


def test_printed_with_what_was_set():
    assert repr(regressor()) == (
        "LinearizedGPRegressor(hidden_layer_sizes=(6,), random_state=0, steps=40)"
    )
