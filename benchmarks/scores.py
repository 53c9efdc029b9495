"""Scores of predictions, and means over splits with their standard errors.

Where `lingp.metrics` has a score it is that one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lingp.metrics import auroc, brier, calibration_error

__all__ = [
    "auroc",
    "cell",
    "classification",
    "entropy",
    "gaussian_nll",
    "mean_and_error",
    "softmax_mixture",
]


def classification(probabilities: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Scores of probabilities (n x C) for labels (n,); all but accuracy are better when lower.

    nll       mean negative log probability of the label
    brier     mean squared distance from the one-hot label, summed over classes
    ece       expected calibration error: |confidence - accuracy| over 15 equal bins of confidence
    accuracy  share of rows whose most probable class is the label
    """
    p = probabilities / probabilities.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        nll = -np.log(p[np.arange(len(y)), y]).mean()
    return {
        "nll": float(nll),
        "brier": brier(p, y),
        "ece": calibration_error(p, y),
        "accuracy": float((p.argmax(axis=1) == y).mean()),
    }


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Of each row of class probabilities (n x C), in nats."""
    p = probabilities / probabilities.sum(axis=1, keepdims=True)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1)


def gaussian_nll(mean: np.ndarray, variance: np.ndarray, y: np.ndarray) -> float:
    """Mean negative log density of y under independent normals, all (n,)."""
    return float(0.5 * (np.log(2 * np.pi * variance) + np.square(y - mean) / variance).mean())


def softmax_mixture(mean: np.ndarray, covariance: np.ndarray, num_draws: int = 2048) -> np.ndarray:
    """E softmax(f) for f ~ N(mean, covariance), by the same normal draws for every row.

    Parameters
    ----------
    mean : (n x C)
    covariance : (n x C x C)
    num_draws : int
        Half of them are the others' mirror images.
    """
    values, vectors = np.linalg.eigh(covariance)
    roots = vectors * np.sqrt(np.clip(values, 0, None))[:, None]
    half = np.random.default_rng(0).normal(size=(mean.shape[1], num_draws // 2))
    normal = np.concatenate([half, -half], axis=1)
    found = []
    for center, root in zip(mean, roots, strict=True):
        f = center[:, None] + root @ normal
        p = np.exp(f - f.max(axis=0))
        found.append((p / p.sum(axis=0)).mean(axis=1))
    return np.array(found)


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
