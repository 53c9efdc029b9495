"""Prediction intervals: how often they hold the target, and what their width costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from lingp.metrics.arguments import (
    Array,
    Reduction,
    as_array,
    between_zero_and_one,
    reduced,
    same_shape,
)
from lingp.metrics.targets import beside_targets
from lingp.models import Prediction


def interval_score(
    y: Any, lower: Any, upper: Any, level: float, *, reduction: Reduction = "mean"
) -> Any:
    """Score of central intervals of probability `level`: width, and a penalty for misses.

        (u - l) + 2/α (l - y) 1[y < l] + 2/α (y - u) 1[y > u],     α = 1 - level

    (Gneiting and Raftery, 2007, equation 43): smallest on average for the true quantiles.

    Parameters
    ----------
    y, lower, upper
        Targets and ends, of one shape; NaN in y: not scored.
    level
        The probability the intervals are meant to have, e.g. 0.9.
    reduction
        "mean", or "none": one value for each target.

    Examples
    --------
    >>> interval_score([0.0, 1.5], [-1.0, -1.0], [1.0, 1.0], level=0.5, reduction="none")
    array([2., 4.])
    """
    t, low, high = _checked(y, lower, upper)
    between_zero_and_one(np.asarray(level, dtype=float), "level")
    beyond = np.maximum(low - t, 0) + np.maximum(t - high, 0)
    return reduced(high - low + 2 / (1 - level) * beyond, reduction)


def coverage(y: Any, lower: Any, upper: Any) -> float:
    """Share of targets within their interval, ends included; NaN targets don't count.

    Parameters
    ----------
    y, lower, upper
        Targets and ends, of one shape.
    """
    t, low, high = _checked(y, lower, upper)
    known = ~np.isnan(t)
    inside = (t >= low) & (t <= high)
    return float(reduced(np.where(known, inside, np.nan), "mean"))


def coverage_curve(prediction: Prediction, y: Any, levels: Any = None) -> Array:
    """Share of targets within the central interval of each level.

    Equal to the level, up to the spread of a share, for a calibrated prediction of a continuous
    target. Intervals of counts hold more than their level.

    Parameters
    ----------
    prediction
        Of n rows.
    y
        Their targets; NaN: not counted.
    levels
        Probabilities between 0 and 1; 0.05, 0.10, ..., 0.95 by default.

    Returns
    -------
    numpy.ndarray
        One share for each level.
    """
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"prediction: expected what `predict` gives, got {type(prediction).__name__}; for "
            "intervals as arrays there is lingp.metrics.coverage"
        )
    chosen = as_array(np.arange(1, 20) / 20 if levels is None else levels, "levels")
    between_zero_and_one(chosen, "levels")
    predictive, targets = beside_targets(prediction, y)
    values = as_array(targets, "y", missing=True)
    if predictive.cdf_support != "reals":
        ends = [prediction.predictive.interval(float(level)) for level in chosen.flat]
        return np.array([coverage(values, *pair) for pair in ends]).reshape(chosen.shape)
    # where intervals cost a search, one evaluation of the distribution function serves all levels
    below = as_array(predictive.cdf(targets.nan_to_num()), "prediction")
    inner = np.abs(2 * below - 1)[~np.isnan(values)]
    if not inner.size:
        raise ValueError("y: all targets are missing (NaN)")
    return (inner[:, None] <= chosen.reshape(1, -1)).mean(axis=0).reshape(chosen.shape)


def _checked(y: Any, lower: Any, upper: Any) -> tuple[Array, Array, Array]:
    t, low, high = (
        as_array(y, "y", missing=True),
        as_array(lower, "lower"),
        as_array(upper, "upper"),
    )
    same_shape(y=t, lower=low, upper=high)
    if (low > high).any():
        where = np.argwhere(low > high)[0].tolist()
        raise ValueError(f"lower: is above upper at {where}")
    return t, low, high
