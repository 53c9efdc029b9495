"""The picture of the quickstart: one hull at every speed, and every held-out measurement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lingp.data import RegressionData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from quickstart import Forecast

Predict = Callable[[np.ndarray], "Forecast"]

SPEED = 5  # the column with the Froude number
SLOWEST, FASTEST = 0.1, 0.55  # to show; measured were 0.125 to 0.45
# Chosen to stay apart in grey print: light, middle and dark, and markers of different shape.
NOISE_COLOR, MODEL_COLOR, INK, HELD_OUT_COLOR = "#d7e7f5", "#7fb2de", "#1a1a1a", "#c2410c"


def draw(path: Path, yacht: RegressionData, test: np.ndarray, predict: Predict) -> None:
    """Draw the three panels and write them to a file.

    Parameters
    ----------
    path : Path
        Where the picture goes.
    yacht : RegressionData
        All measurements.
    test : ndarray of int, (n_test,)
        Rows that were held out.
    predict : callable
        Maps inputs (N x 6) to a `Forecast`.
    """
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(11.0, 5.6), layout="constrained")
    figure.suptitle(
        f"A network trained on {len(yacht.y) - len(test)} towing-tank measurements of sailing "
        "yachts, as a Gaussian process",
        fontsize=13,
        fontweight="bold",
    )
    grid = figure.add_gridspec(2, 2, width_ratios=[1.2, 1], height_ratios=[2, 1])
    curve_axes = figure.add_subplot(grid[0, 0])
    zoom_axes = figure.add_subplot(grid[1, 0], sharex=curve_axes)
    draw_one_hull(curve_axes, zoom_axes, yacht, test, predict)
    draw_held_out(figure.add_subplot(grid[:, 1]), yacht, test, predict)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_one_hull(
    curve_axes: Axes, zoom_axes: Axes, yacht: RegressionData, test: np.ndarray, predict: Predict
) -> None:
    """Resistance against speed for the hull with most held-out points; below, minus the mean."""
    hulls, hull_of_row = np.unique(yacht.X[:, :SPEED], axis=0, return_inverse=True)
    hull_of_row = hull_of_row.ravel()  # NumPy 2.0 keeps two dimensions here
    hull = np.bincount(hull_of_row[test]).argmax()
    rows = np.flatnonzero(hull_of_row == hull)
    is_test = np.isin(rows, test)

    speed = np.linspace(SLOWEST, FASTEST, 400)
    curve = predict(np.column_stack([np.tile(hulls[hull], (len(speed), 1)), speed]))
    at_rows = predict(yacht.X[rows])

    for axes, minus_mean in ((curve_axes, False), (zoom_axes, True)):
        center = np.zeros_like(speed) if minus_mean else curve.mean
        points = yacht.y[rows] - at_rows.mean if minus_mean else yacht.y[rows]
        axes.axvline(yacht.X[:, SPEED].max(), color="0.45", lw=1, ls=":")
        axes.plot(
            speed, center, color=INK, lw=1.6, label="prediction of the trained network", zorder=3
        )
        for std, color, label in (
            (curve.total_std, NOISE_COLOR, "90 % band for a measurement (model and noise)"),
            (curve.epistemic_std, MODEL_COLOR, "90 % band for the curve (model alone)"),
        ):
            half_width = curve.half_width(std)
            axes.fill_between(
                speed, center - half_width, center + half_width, color=color, lw=0, label=label
            )
        axes.scatter(
            yacht.X[rows[~is_test], SPEED],
            points[~is_test],
            color=INK,
            s=26,
            zorder=4,
            label="measured, used for training",
        )
        axes.scatter(
            yacht.X[rows[is_test], SPEED],
            points[is_test],
            facecolor="white",
            edgecolor=HELD_OUT_COLOR,
            marker="D",
            s=44,
            lw=1.8,
            zorder=4,
            label="measured, held out",
        )

    top = (curve.mean + curve.half_width(curve.total_std)).max()
    curve_axes.set_title("One hull, from slow to faster than was ever measured")
    curve_axes.set_ylabel("residuary resistance per unit\nweight of displacement (–)")
    curve_axes.set_ylim(-0.06 * top, 1.1 * top)
    curve_axes.legend(loc="upper left", frameon=False)
    curve_axes.tick_params(labelbottom=False)
    curve_axes.text(
        (yacht.X[:, SPEED].max() + FASTEST) / 2,
        0.06,
        "no data at\nthese speeds",
        ha="center",
        transform=curve_axes.get_xaxis_transform(),
    )
    zoom_axes.set_xlim(SLOWEST, FASTEST)
    zoom_axes.set_ylim(-1.8, 1.8)
    zoom_axes.set_ylabel("the same, minus\nthe prediction (–)")
    zoom_axes.set_xlabel("speed as Froude number (–)")


def draw_held_out(axes: Axes, yacht: RegressionData, test: np.ndarray, predict: Predict) -> None:
    """Error of every held-out prediction with its interval; good ones cross the zero line."""
    y = yacht.y[test]
    there = predict(yacht.X[test])
    half_width = there.half_width(there.total_std)
    inside = there.contains(y)
    axes.axhline(0, color="0.45", lw=1)
    for group, color, face, marker, label in (
        (inside, INK, INK, "o", "interval contains the measured value"),
        (~inside, HELD_OUT_COLOR, "white", "D", "interval misses the measured value"),
    ):
        axes.errorbar(
            y[group],
            (there.mean - y)[group],
            yerr=half_width[group],
            fmt=marker,
            ms=5.5,
            color=color,
            markerfacecolor=face,
            markeredgewidth=1.6,
            lw=1.4,
            label=f"{label}: {group.sum()} of {len(y)}",
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    reach = 1.35 * np.abs([there.mean - y - half_width, there.mean - y + half_width]).max()
    axes.set_ylim(-reach, reach)
    axes.set_title("Held-out measurements, with 90 % intervals")
    axes.set_xlabel("measured resistance (–)")
    axes.set_ylabel("predicted minus measured resistance (–)")
    axes.legend(loc="upper left", frameon=False)
