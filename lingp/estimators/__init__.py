"""scikit-learn estimators: networks with error bars, without writing PyTorch."""

from __future__ import annotations

from lingp.estimators.classifier import LinearizedGPClassifier
from lingp.estimators.regressor import LinearizedGPRegressor

__all__ = ["LinearizedGPClassifier", "LinearizedGPRegressor"]
