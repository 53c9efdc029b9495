"""The continuous ranked probability score of normals, mixtures of them, and draws.

    CRPS(F, y) = ∫ (F(x) - 1[x >= y])² dx = E|X - y| - ½ E|X - X'|

(Gneiting and Raftery, 2007, "Strictly proper scoring rules, prediction, and estimation", equations
20 and 21), in the units of y: the absolute error of a prediction that is a single number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import ndtr

from lingp.metrics.arguments import Array, Reduction, as_array, positive, reduced, same_shape

_CHUNK = 2**22  # pairs of components at a time


def crps_gaussian(mean: Any, stddev: Any, y: Any, *, reduction: Reduction = "mean") -> Any:
    """CRPS of N(mean, stddev²), in closed form.

        σ ( w (2 Φ(w) - 1) + 2 φ(w) - 1/√π ),   w = (y - mean) / σ

    (Gneiting and Raftery, 2007, equation 21 and below). A zero deviation is a point: |y - mean|.

    Parameters
    ----------
    mean, stddev, y
        Of one shape; NaN in y: not scored.
    reduction
        "mean", or "none": one value for each target.

    Examples
    --------
    >>> round(crps_gaussian([0.0], [1.0], [0.5]), 4)
    0.3314
    """
    m, s, t = as_array(mean, "mean"), as_array(stddev, "stddev"), as_array(y, "y", missing=True)
    same_shape(y=t, mean=m, stddev=s)
    positive(s, "stddev")
    return reduced(_mean_distance(t - m, s) - s / math.sqrt(math.pi), reduction)


def crps_mixture(
    means: Any, stddevs: Any, y: Any, *, weights: Any = None, reduction: Reduction = "mean"
) -> Any:
    """CRPS of mixtures Σ_k w_k N(means_k, stddevs_k²), in closed form.

        Σ_k w_k A(y - μ_k, σ_k²) - ½ Σ_kl w_k w_l A(μ_k - μ_l, σ_k² + σ_l²)

    with A(m, v) = E|X| for X ~ N(m, v) (Grimit, Gneiting, Berrocal and Johnson, 2006, "The
    continuous ranked probability score for circular variables and its application to mesoscale
    forecast ensemble verification", equation 5). For ensembles: one component per member.

    Parameters
    ----------
    means, stddevs
        (... x K): the K components of each target.
    y
        (...); NaN: not scored.
    weights
        (K,) or (... x K), of sum one; equal by default.
    reduction
        "mean", or "none": one value for each target.

    Examples
    --------
    Two members of an ensemble, one target:

    >>> round(crps_mixture([[-1.0, 1.0]], [[0.5, 0.5]], [0.0]), 4)
    0.3672
    """
    m, s, t = as_array(means, "means"), as_array(stddevs, "stddevs"), as_array(y, "y", missing=True)
    same_shape(means=m, stddevs=s)
    positive(s, "stddevs")
    if m.shape[:-1] != t.shape or m.ndim != t.ndim + 1:
        raise ValueError(
            f"means: expected shape (*y's, K) = ({', '.join(map(str, t.shape))}, K), got {m.shape}"
        )
    number = m.shape[-1]
    w = np.full(m.shape, 1 / number) if weights is None else as_array(weights, "weights")
    if w.shape != m.shape and w.shape != (number,):
        raise ValueError(f"weights: expected shape ({number},) or {m.shape}, got {w.shape}")
    positive(w, "weights")
    if not np.allclose(w.sum(-1), 1, rtol=0, atol=1e-6):
        raise ValueError(f"weights: expected a sum of 1, got {w.sum(-1).flat[0]:g}")
    w = np.broadcast_to(w, m.shape).reshape(-1, number)
    scores, _ = mixture_scores(m.reshape(w.shape), s.reshape(w.shape), w, t.reshape(-1))
    return reduced(scores.reshape(t.shape), reduction)


def mixture_scores(m: Array, s: Array, w: Array, y: Array) -> tuple[Array, Array]:
    """CRPS of mixtures with K components (n x K) at y (n,), and their ½ E|X - X'|, (n,)."""
    apart = (w * _mean_distance(y[:, None] - m, s)).sum(-1)
    size = max(1, _CHUNK // m.shape[1] ** 2)
    chunks = [slice(start, start + size) for start in range(0, len(m), size)]
    within = np.concatenate([_within(m[rows], s[rows], w[rows]) for rows in chunks])
    return apart - within, within


def crps_samples(samples: Any, y: Any, *, reduction: Reduction = "mean") -> Any:
    """Unbiased estimate of the CRPS from S draws.

        1/S Σ_s |x_s - y| - 1/(2 S (S-1)) Σ_st |x_s - x_t|

    the "fair" form (Ferro, 2014, "Fair scores for ensemble forecasts", equation 4): with 1/(2 S²)
    instead, few draws score worse than many of the same distribution. Single values may be
    negative.

    Parameters
    ----------
    samples
        (S x ...), S >= 2.
    y
        (...); NaN: not scored.
    reduction
        "mean", or "none": one value for each target.
    """
    x, t = as_array(samples, "samples"), as_array(y, "y", missing=True)
    if x.ndim != t.ndim + 1 or x.shape[1:] != t.shape:
        raise ValueError(
            f"samples: expected shape (S, *y's) = (S, {', '.join(map(str, t.shape))}), "
            f"got {x.shape}"
        )
    size = len(x)
    if size < 2:
        raise ValueError(f"samples: expected at least 2 draws, got {size}")
    # Σ_st |x_s - x_t| = 2 Σ_s (2 s - S - 1) x_(s) for the ordered draws
    rank = 2 * np.arange(1, size + 1) - size - 1
    centred = np.sort(x, axis=0) - x.mean(axis=0)
    spread = np.tensordot(rank, centred, axes=1) / (size * (size - 1))
    return reduced(np.abs(x - t).mean(axis=0) - spread, reduction)


def _mean_distance(off: Array, stddev: Array) -> Array:
    """A(m, σ²) = m (2 Φ(m/σ) - 1) + 2 σ φ(m/σ): E|X| of X ~ N(m, σ²)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        w = np.where(stddev > 0, off / stddev, np.inf * np.sign(off))
    w = np.where(np.isnan(w) & ~np.isnan(off), 0.0, w)
    density = np.exp(-0.5 * np.square(w)) / math.sqrt(2 * math.pi)
    distance: Array = off * (2 * ndtr(w) - 1) + 2 * stddev * density
    return distance


def _within(m: Array, s: Array, w: Array) -> Array:
    """½ E|X - X'|, (n,)."""
    spread = np.sqrt(np.square(s)[:, :, None] + np.square(s)[:, None])
    distance = _mean_distance(m[:, :, None] - m[:, None], spread)
    pairs: Array = 0.5 * np.einsum("nk,nkl,nl->n", w, distance, w)
    return pairs
