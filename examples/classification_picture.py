"""The picture of the classification example: maps of probability and entropy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from classification import Classifier, Data
    from matplotlib.axes import Axes

# Blue to orange through white: kept apart by all common kinds of colour vision.
PROBABILITY_MAP, ENTROPY_MAP = "PuOr_r", "cividis"
COLUMNS = (
    ("network", "probability of class 1"),
    ("lingp", "probability of class 1"),
    ("network", "entropy"),
    ("lingp", "entropy"),
)


def draw(path: Path, shown: list[tuple[Data, Classifier]], pixels: int) -> None:
    """Draw a row for each classifier and write the picture to a file."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        len(shown),
        len(COLUMNS),
        figsize=(14.0, 0.2 + 3.1 * len(shown)),
        squeeze=False,
        sharex="row",
        sharey="row",
        layout="constrained",
    )
    for row, (data, classifier) in enumerate(shown):
        side = 2.6 * np.abs(data.X).max()
        line = np.linspace(-side, side, pixels)
        points = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
        probability = {name: getattr(classifier, name)(points) for name in ("network", "lingp")}
        for axes, (name, quantity) in zip(grid[row], COLUMNS, strict=True):
            values = probability[name]
            colors, top, ticks = PROBABILITY_MAP, 1.0, [0, 0.25, 0.5, 0.75, 1]
            if quantity == "entropy":
                values = binary_entropy(values)
                colors, top, ticks = ENTROPY_MAP, np.log(2), [0, 0.2, 0.4, 0.6, np.log(2)]
            image = axes.imshow(
                values.reshape(pixels, pixels),
                extent=(-side, side, -side, side),
                origin="lower",
                cmap=colors,
                vmin=0,
                vmax=top,
            )
            draw_data(axes, data, legend=row == 0 and axes is grid[row, 0])
            owner = "the network alone" if name == "network" else "lingp"
            axes.set_title(f"{classifier.title}\n{owner}: {quantity}", fontsize=9)
            bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03, ticks=ticks)
            if quantity == "entropy":
                bar.ax.set_yticklabels(["0", "0.2", "0.4", "0.6", "log 2"])
            else:  # where the decision changes
                shape = (pixels, pixels)
                axes.contour(line, line, values.reshape(shape), [0.5], colors="0.2", linewidths=1)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def binary_entropy(p: np.ndarray) -> np.ndarray:
    """-p log p - (1 - p) log (1 - p), in nats."""
    clipped = np.clip(p, 1e-300, 1)
    other = np.clip(1 - p, 1e-300, 1)
    return -(p * np.log(clipped) + (1 - p) * np.log(other))


def draw_data(axes: Axes, data: Data, *, legend: bool) -> None:
    """Training data, a marker for each class."""
    for label, marker, color in ((0, "s", "#542788"), (1, "o", "#b35806")):
        points = data.X[data.y == label]
        axes.plot(
            *points.T,
            marker,
            ms=2.6,
            color=color,
            mec="white",
            mew=0.4,
            ls="none",
            label=f"class {label}",
        )
    if axes.get_subplotspec().is_last_row():
        axes.set_xlabel("input 1 (standardised)")
    if axes.get_subplotspec().is_first_col():
        axes.set_ylabel("input 2 (standardised)")
    if legend:
        axes.legend(loc="lower left", fontsize=8, framealpha=0.9)
