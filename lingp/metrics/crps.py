"""The CRPS of predictions: which form of it each predictive distribution has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lingp.likelihoods import GaussianPredictive, Predictive
from lingp.likelihoods.predictives.draws import LatentPredictive
from lingp.metrics.arguments import Reduction, as_array, reduced
from lingp.metrics.crps_counts import crps_of_counts
from lingp.metrics.crps_nodes import crps_of_mixture
from lingp.metrics.crps_of import crps_gaussian, crps_samples
from lingp.metrics.targets import beside_targets
from lingp.models import Prediction


def crps(
    prediction: Prediction,
    y: Any,
    *,
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Any:
    """Continuous ranked probability score, in the units of y: lower is better.

        ∫ (P(y' <= x) - 1[x >= y])² dx

    (Gneiting and Raftery, 2007, equation 20), of each target on its own. A prediction that is one
    number has the absolute error. In closed form for Gaussian noise of every kind; from the
    distribution function for `Heteroscedastic` and Student-t noise, to about 1e-6 of the predictive
    distribution's width, and as a sum for counts and ordered labels.

    Parameters
    ----------
    prediction
        What `LinearizedGP.predict` gives.
    y
        Targets; NaN: not scored.
    num_samples, generator
        Estimate it from so many draws instead, without bias: see `crps_samples`. For predictives
        without a distribution function.
    reduction
        "mean" over all targets, or "none": one value for each target, in their shape.

    Returns
    -------
    float or numpy.ndarray

    Raises
    ------
    TypeError
        For class labels without an order, and for predictives without a distribution function where
        `num_samples` isn't given.
    """
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"prediction: expected what `predict` gives, got {type(prediction).__name__}; for "
            "arrays there are crps_gaussian, crps_mixture and crps_samples"
        )
    if not prediction.layout.likelihood.has_order:
        raise TypeError(
            "prediction: is of class labels, which have no order to rank by; use nll or brier"
        )
    predictive, values = beside_targets(prediction, y)
    with torch.no_grad():
        if num_samples is not None:
            draws = predictive.sample(num_samples, generator)
            each = values.new_tensor(crps_samples(draws, values, reduction="none"))
        else:
            each = _exact(predictive, values)
    return reduced(as_array(prediction.layout.values(each), "y", missing=True), reduction)


def _exact(predictive: Predictive, values: Tensor) -> Tensor:
    """Of each target, (n x T)."""
    if isinstance(predictive, GaussianPredictive):
        mean, stddev = predictive.mean, predictive.variance.sqrt()
        scores = crps_gaussian(mean, stddev, values, reduction="none")
        return torch.as_tensor(scores, device=values.device)
    if isinstance(predictive, LatentPredictive):
        if predictive.cdf_support == "reals":
            return crps_of_mixture(predictive, values)
        if predictive.cdf_support == "counts":
            return crps_of_counts(predictive, values)
    raise TypeError(
        f"prediction: {type(predictive).__name__} has no distribution function; estimate from "
        "draws by num_samples=1000, generator=..."
    )
