"""Scores of predicted class probabilities, and means over splits with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_BINS = 15


def classification(probabilities: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Scores of probabilities (n x C) for labels (n,); all but accuracy are better when lower.

    nll       mean negative log probability of the label
    brier     mean squared distance from the one-hot label, summed over classes
    ece       expected calibration error: |confidence - accuracy| over 15 equal bins of confidence
    accuracy  share of rows whose most probable class is the label
    """
    p = probabilities / probabilities.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    gap = np.bincount(bins, weights=confidence - correct, minlength=_BINS)
    with np.errstate(divide="ignore"):
        nll = -np.log(p[rows, y]).mean()
    return {
        "nll": float(nll),
        "brier": float(np.square(p - np.eye(p.shape[1])[y]).sum(axis=1).mean()),
        "ece": float(np.abs(gap).sum() / len(y)),
        "accuracy": float(correct.mean()),
    }


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over splits and its standard error (nan for one split)."""
    array = np.asarray(values, dtype=float)
    error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return float(array.mean()), float(error)


def cell(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard error, for a table."""
    if not len(values):
        return "–"
    mean, error = mean_and_error(values)
    shown = f"{mean:.{digits}f}"
    return shown if math.isnan(error) else f"{shown} ± {error:.{digits}f}"
