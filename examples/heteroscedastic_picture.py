"""The picture of the heteroscedastic example: bands of both models, and standard deviations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from heteroscedastic import Data, Forecast, Model
    from matplotlib.axes import Axes

# Light, middle and dark, so that they stay apart in grey print and for colour-blind readers.
TOTAL_COLOR, MODEL_COLOR, INK, POINT_COLOR = "#d7e7f5", "#7fb2de", "#1a1a1a", "#c2410c"
NOISE_COLORS = (("0.45", "0.85"), ("#0b5394", "#a9cbe8"))  # line and band of the two models


def draw(path: Path, sets: list[Data], models: list[dict[str, Model]]) -> None:
    """Draw a row for each data set and write the picture to a file.

    Parameters
    ----------
    path : Path
        Where the picture goes.
    sets : list of Data
        One row each.
    models : list of dict
        The models of each set, by name: one column each, and all in the last column.
    """
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        len(sets), 3, figsize=(13.0, 0.6 + 3.8 * len(sets)), squeeze=False, layout="constrained"
    )
    for row, (data, by_name) in enumerate(zip(sets, models, strict=True)):
        x = np.linspace(*data.show, 400)
        forecasts = {name: model.forecast(x) for name, model in by_name.items()}
        for axes, (name, forecast) in zip(grid[row], forecasts.items(), strict=False):
            draw_bands(axes, data, x, forecast, legend=row == 0 and axes is grid[row, 1])
            axes.set_title(f"{data.name}: {name}", fontsize=11)
        limits = data.y.min(), data.y.max()
        margin = 0.6 * (limits[1] - limits[0])
        for axes in grid[row, :2]:
            axes.set_ylim(limits[0] - margin, limits[1] + margin)
        draw_deviations(grid[row, 2], data, x, forecasts)
        grid[row, 2].set_ylim(0, 0.45 * (limits[1] - limits[0]))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_bands(axes: Axes, data: Data, x: np.ndarray, forecast: Forecast, *, legend: bool) -> None:
    """Data, median, and the band of the mean inside that of a measurement."""
    for (lower, _, upper), color, label in (
        (forecast.measurement, TOTAL_COLOR, "90 % of measurements (model and noise)"),
        (forecast.mean, MODEL_COLOR, "90 % band of their mean (model alone)"),
    ):
        axes.fill_between(x, lower, upper, color=color, lw=0, label=label)
    axes.plot(data.x, data.y, ".", color=POINT_COLOR, ms=4, label="training data")
    if data.true_mean is not None:
        axes.plot(x, data.true_mean(x), color=INK, lw=1.2, ls="--", label="true mean")
    axes.plot(x, forecast.mean[1], color=INK, lw=1.6, label="median of the mean")
    axes.set_xlim(*data.show)
    axes.set_xlabel(data.x_name)
    axes.set_ylabel(data.y_name)
    if legend:
        axes.legend(loc="lower left", fontsize=8, framealpha=0.9)


def draw_deviations(axes: Axes, data: Data, x: np.ndarray, forecasts: dict[str, Forecast]) -> None:
    """The noise's standard deviation by both models, with the band of what they know of it."""
    for (line, band), (name, forecast) in zip(NOISE_COLORS, forecasts.items(), strict=True):
        lower, median, upper = forecast.noise
        axes.fill_between(x, lower, upper, color=band, lw=0)
        axes.plot(x, median, color=line, lw=2, label=name)
    if data.true_std is not None:
        axes.plot(x, data.true_std(x), color=INK, lw=1.2, ls="--", label="true noise")
    for end, label in ((data.x.min(), "first and last datum"), (data.x.max(), None)):
        axes.axvline(end, color="0.45", lw=1, ls=":", label=label)
    axes.set_xlim(*data.show)
    axes.set_title(f"{data.name}: noise, median and 90 % band", fontsize=11)
    axes.set_xlabel(data.x_name)
    axes.set_ylabel("standard deviation")
    axes.legend(loc="upper left", fontsize=8, framealpha=0.9)
