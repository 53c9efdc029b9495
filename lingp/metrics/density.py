"""The logarithmic score."""

from __future__ import annotations

from typing import Any

from lingp.metrics.arguments import Reduction, as_array, reduced
from lingp.models import Prediction


def nll(prediction: Prediction, y: Any, *, reduction: Reduction = "mean") -> Any:
    """Negative log predictive density of the targets, in nats per row.

    For class labels it is the log loss, `sklearn.metrics.log_loss(y, prediction.probs)` without
    that function's clipping.

    Parameters
    ----------
    prediction
        What `LinearizedGP.predict` gives.
    y
        Targets; several of a row are scored jointly, missing (NaN) ones left out where the
        likelihood allows them.
    reduction
        "mean" over rows, or "none": one value per row, (n,).

    Returns
    -------
    float or numpy.ndarray
    """
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"prediction: expected what `predict` gives, got {type(prediction).__name__}; for "
            "arrays of probabilities there is sklearn.metrics.log_loss, for moments "
            "scipy.stats.norm.logpdf"
        )
    return reduced(-as_array(prediction.log_prob(y), "prediction", missing=True), reduction)
