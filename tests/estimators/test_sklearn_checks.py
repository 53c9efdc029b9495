"""scikit-learn's own checks, with no expected failures."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from lingp.estimators import LinearizedGPClassifier, LinearizedGPRegressor

SMALL = {"hidden_layer_sizes": (20,), "steps": 50}
ESTIMATORS = [LinearizedGPRegressor(**SMALL), LinearizedGPClassifier(**SMALL)]


@parametrize_with_checks(ESTIMATORS)
def test_sklearn_check(estimator, check):
    check(estimator)
