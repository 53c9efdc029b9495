"""Targets of a prediction as scores of single values need them: flat, without known quantities."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lingp.likelihoods import Predictive
from lingp.metrics.arguments import Array, as_array
from lingp.models import Prediction


def beside_targets(prediction: Prediction, y: Any) -> tuple[Predictive, Tensor]:
    """The predictive at the targets' known quantities, and their values (n x T), NaN: missing."""
    return prediction.predictive.beside(prediction.layout.checked(y))


def values_of(prediction: Prediction, y: Any) -> Array:
    """Values of the targets, (n x T), NaN where missing."""
    return as_array(beside_targets(prediction, y)[1], "y", missing=True)
