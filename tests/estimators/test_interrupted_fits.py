"""Learning that is interrupted leaves an estimator as it was."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pandas as pd
import pytest
from interruptions import calls, interrupt
from sklearn.exceptions import NotFittedError
from small_tables import classifier, labelled, regressor, table

MODELS = {
    "regressor": (regressor, table()),
    "held out": (functools.partial(regressor, validation_fraction=0.2), table()),
    "classifier": (classifier, labelled()),
}
SHARES = (0.02, 0.3, 0.7, 0.95, 1.0)  # of the calls until it is done
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)
EVERY_WAY = pytest.mark.parametrize("way", ["fit", "partial_fit"])


def others(X, y):
    """Another table: other columns, that have names, and other targets."""
    y = np.char.add(y, "!") if y.dtype.kind == "U" else 1e6 * y
    return pd.DataFrame(1e4 * X[:, :2] - 7, columns=["a", "b"]), y


def found(model, X):
    """What a fitted estimator says."""
    predict = getattr(model, "predict_proba", model.predict)
    return predict(X), model.log_marginal_likelihood_value_


@EVERY_WAY
@EVERY_MODEL
def test_what_was_learned_is_kept(name, way):
    make, (X, y) = MODELS[name]
    fitted = make(mean="refit").fit(X, y)
    values, evidence = found(fitted, X)
    data = others(X, y) if way == "fit" else (X[:5] + 0.1, y[:5])
    for _ in range(2):  # from the second time on, as many functions are called
        done = copy.deepcopy(fitted)
        total = calls(lambda done=done: getattr(done, way)(*data))
    assert not np.array_equal(done.x_scaler_.mean, fitted.x_scaler_.mean) or way != "fit"
    for share in SHARES:
        model = copy.deepcopy(fitted)
        attributes = dict(vars(model))
        interrupt(lambda model=model: getattr(model, way)(*data), max(1, round(share * total)))
        assert vars(model) == attributes  # the same objects, so n_features_in_ and classes_ too
        again = found(model, X)
        np.testing.assert_array_equal(again[0], values)
        assert again[1] == evidence
        assert model.gp_.evidence() == fitted.gp_.evidence()


@EVERY_WAY
@EVERY_MODEL
def test_what_was_never_fitted_stays_so(name, way):
    make, (X, y) = MODELS[name]
    for _ in range(2):
        done = make()
        total = calls(lambda done=done: getattr(done, way)(X, y))
    for share in SHARES:
        model = make()
        interrupt(lambda model=model: getattr(model, way)(X, y), max(1, round(share * total)))
        assert vars(model).keys() == vars(make()).keys()
        with pytest.raises(NotFittedError):
            model.predict(X)
    expected = make()
    for estimator in (model, expected):
        getattr(estimator, way)(X, y)
    np.testing.assert_array_equal(found(model, X)[0], found(expected, X)[0])


def test_errors_too():
    X, y = labelled()
    model = classifier().fit(X, y)
    values, attributes = model.predict_proba(X), dict(vars(model))
    with pytest.raises(ValueError, match="of one class"):
        model.fit(*others(X, np.full_like(y, "one")))
    with pytest.raises(ValueError, match="not among the classes"):
        model.partial_fit(X, np.char.add(y, "!"))
    assert vars(model) == attributes
    np.testing.assert_array_equal(model.predict_proba(X), values)
