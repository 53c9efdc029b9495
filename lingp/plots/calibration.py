"""Calibration: of class probabilities, and of prediction intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import beta

from lingp import metrics
from lingp.metrics.arguments import Array, as_array
from lingp.metrics.calibration import Binning
from lingp.metrics.targets import values_of
from lingp.models import Prediction
from lingp.plots.style import BLUE, GREY, SKY, axes, legend_above, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHARE_HEIGHT = 0.25  # of the axes, for the bin with the most rows


def reliability_diagram(
    probs: Any,
    labels: Any,
    *,
    num_bins: int = 15,
    binning: Binning = "width",
    ax: Axes | None = None,
) -> Axes:
    """How often the most probable class is right, against its probability.

    Points on the diagonal are calibrated, below it too sure. Error bars are 95 % intervals of each
    share (Clopper and Pearson); bars at the bottom are the rows in each bin, not to scale.

    Parameters
    ----------
    probs
        (n, K), or (n,) of class 1.
    labels
        Column of each row's class, (n,).
    num_bins, binning
        As in `lingp.metrics.reliability`.
    ax
        Axes to draw on; new ones by default.
    """
    found = metrics.reliability(probs, labels, num_bins=num_bins, binning=binning)
    error = metrics.calibration_error(probs, labels, num_bins=num_bins, binning=binning)
    ax, filled = axes(ax, (5.0, 4.6)), found.counts > 0
    edges, counts = found.edges, found.counts
    ax.bar(
        edges[:-1],
        _SHARE_HEIGHT * counts / counts.max(),
        np.diff(edges),
        align="edge",
        color=SKY,
        alpha=0.6,
        edgecolor="white",
        linewidth=0.5,
        label=f"rows (at most {counts.max()} in a bin)",
    )
    ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="calibrated")
    right = np.round(found.accuracy[filled] * counts[filled])
    lower, upper = _interval_of_share(right, counts[filled])
    accuracy = found.accuracy[filled]
    ax.errorbar(
        found.confidence[filled],
        accuracy,
        yerr=[accuracy - lower, upper - accuracy],
        fmt="o-",
        color=BLUE,
        markersize=4.5,
        linewidth=1.2,
        elinewidth=1,
        capsize=2,
        label=f"accuracy (ECE {error:.3f})",
    )
    least = float(found.confidence[filled].min())
    ax.set_xlim(max(0.0, min(least, edges[np.argmax(filled)]) - 0.03), 1.01)
    ax.set_ylim(0, 1.01)
    ax.set_xlabel("probability of the most probable class")
    ax.set_ylabel("share of rows where it is right")
    tidy(ax)
    legend_above(ax, 2)
    return ax


def coverage_curve(
    prediction: Prediction, y: Any, levels: Any = None, *, ax: Axes | None = None
) -> Axes:
    """How many targets central prediction intervals hold, against how many they should.

    Below the diagonal intervals are too narrow, above it too wide. Grey is where 95 % of calibrated
    predictions would be, for targets that are independent.

    Parameters
    ----------
    prediction
        Of n rows.
    y
        Their targets.
    levels
        Probabilities of intervals; 0.05, 0.10, ..., 0.95 by default.
    ax
        Axes to draw on; new ones by default.
    """
    chosen = as_array(np.arange(1, 20) / 20 if levels is None else levels, "levels").reshape(-1)
    found = metrics.coverage_curve(prediction, y, chosen)
    number = int((~np.isnan(values_of(prediction, y))).sum())
    ax = axes(ax, (5.0, 4.6))
    order = np.argsort(chosen)
    grid = np.linspace(0, 1, 101)
    spread = 1.96 * np.sqrt(grid * (1 - grid) / number)
    ax.fill_between(
        grid,
        np.clip(grid - spread, 0, 1),
        np.clip(grid + spread, 0, 1),
        color=GREY,
        alpha=0.25,
        linewidth=0,
        label=f"95 % range, {number} targets",
    )
    ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="calibrated")
    ax.plot(chosen[order], found[order], "o-", color=BLUE, markersize=4, label="observed")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.01)
    ax.set_xlabel("probability of the interval")
    ax.set_ylabel("share of targets within it")
    tidy(ax)
    legend_above(ax, 3)
    return ax


def _interval_of_share(right: Array, number: Any) -> tuple[Array, Array]:
    """95 % interval of a probability (Clopper and Pearson, 1934)."""
    lower = np.where(right > 0, beta.ppf(0.025, right, number - right + 1), 0.0)
    upper = np.where(right < number, beta.ppf(0.975, right + 1, number - right), 1.0)
    return lower, upper
