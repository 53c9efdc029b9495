"""Calibration of class probabilities, by bins of confidence.

(Guo, Pleiss, Sun and Weinberger, 2017, "On calibration of modern neural networks", section 2;
Nixon, Dusenberry, Zhang, Jerfel and Tran, 2019, "Measuring calibration in deep learning", for bins
of equal mass and errors by class.) For two classes `sklearn.calibration.calibration_curve` gives
the bins of P(class 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lingp.metrics.arguments import Array, class_probabilities

Binning = Literal["width", "mass"]


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy of the rows in each bin of confidence.

    Attributes
    ----------
    edges
        Ends of the bins, (B + 1,); each has its upper end, the first its lower one too.
    confidence, accuracy
        Mean confidence and share of right rows, (B,); NaN for bins without rows.
    counts
        Rows in each bin, (B,).
    """

    edges: Array
    confidence: Array
    accuracy: Array
    counts: NDArray[np.int64]


def reliability(
    probs: Any, labels: Any, *, num_bins: int = 15, binning: Binning = "width"
) -> Reliability:
    """Confidence, the largest probability of a row, against how often that class is right.

    Parameters
    ----------
    probs
        (n, K), or (n,) of class 1.
    labels
        Column of each row's class, (n,).
    num_bins
        Number of bins.
    binning
        Bins of equal "width" over 0 .. 1, or of equal "mass": with about as many rows in each
        (rows of equal confidence stay together, and bins that would be empty are left out).
    """
    p, y = class_probabilities(probs, labels)
    _check_bins(num_bins, binning)
    return _binned(p.max(axis=1), p.argmax(axis=1) == y, num_bins, binning)


def calibration_error(
    probs: Any,
    labels: Any,
    *,
    num_bins: int = 15,
    binning: Binning = "width",
    norm: float = 1,
    classwise: bool = False,
) -> float:
    """Distance between confidence and accuracy: 0 for calibrated probabilities.

        ( Σ_b n_b/n |acc_b - conf_b|^norm )^(1/norm)

    over bins b of confidence: with norm=1 the expected calibration error (ECE), adaptive with
    binning="mass"; with norm=inf the largest gap (MCE). An estimate from n rows is above zero for
    calibrated probabilities too, by about √(bins / n).

    Parameters
    ----------
    probs, labels, num_bins, binning
        As in `reliability`.
    norm
        1, 2 or `math.inf`; any number >= 1.
    classwise
        Mean over classes k of the error of P(class k), binned by itself, instead of that of the
        largest probability.

    Examples
    --------
    >>> round(calibration_error([[0.9, 0.1]] * 4, [0, 0, 0, 1]), 4)
    0.15
    """
    p, y = class_probabilities(probs, labels)
    _check_bins(num_bins, binning)
    if not (isinstance(norm, int | float) and norm >= 1):
        raise ValueError(f"norm: expected 1, 2 or inf, or another number >= 1, got {norm!r}")
    if not classwise:
        return _error(p.max(axis=1), p.argmax(axis=1) == y, num_bins, binning, norm)
    each = [_error(p[:, k], y == k, num_bins, binning, norm) for k in range(p.shape[1])]
    return float(np.mean(each))


def _check_bins(num_bins: int, binning: str) -> None:
    if not isinstance(num_bins, int | np.integer) or num_bins < 1:
        raise ValueError(f"num_bins: expected a whole number >= 1, got {num_bins!r}")
    if binning not in ("width", "mass"):
        raise ValueError(f'binning: expected "width" or "mass", got {binning!r}')


def _bins(confidence: Array, num_bins: int, binning: str) -> tuple[Array, NDArray[np.int64]]:
    """Edges, and the bin of each row."""
    if binning == "width":
        place = np.ceil(confidence * num_bins).astype(np.int64) - 1
        return np.linspace(0, 1, num_bins + 1), np.clip(place, 0, num_bins - 1)
    edges = np.unique(np.quantile(confidence, np.linspace(0, 1, num_bins + 1)))
    if len(edges) == 1:
        edges = np.repeat(edges, 2)
    return edges, np.searchsorted(edges[1:-1], confidence, side="left")


def _binned(
    confidence: Array, right: NDArray[np.bool_], num_bins: int, binning: str
) -> Reliability:
    edges, place = _bins(confidence, num_bins, binning)
    number = len(edges) - 1
    counts = np.bincount(place, minlength=number)
    with np.errstate(invalid="ignore"):
        confidences = np.bincount(place, weights=confidence, minlength=number) / counts
        accuracies = np.bincount(place, weights=right, minlength=number) / counts
    return Reliability(edges, confidences, accuracies, counts)


def _error(
    confidence: Array, right: NDArray[np.bool_], num_bins: int, binning: str, norm: float
) -> float:
    found = _binned(confidence, right, num_bins, binning)
    filled = found.counts > 0
    gaps = np.abs(found.confidence - found.accuracy)[filled]
    if math.isinf(norm):
        return float(gaps.max())
    share = found.counts[filled] / len(right)
    return float((share @ gaps**norm) ** (1 / norm))
