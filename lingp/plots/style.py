"""What all pictures share: colours, axes, grids and legends; inputs and targets to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lingp.metrics.arguments import Array, as_array
from lingp.models import LinearizedGP, Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito (2008), told apart by all common kinds of colour vision
BLUE, SKY, VERMILION, ORANGE = "#0072B2", "#56B4E9", "#D55E00", "#E69F00"
GREEN, PURPLE, BLACK, GREY = "#009E73", "#CC79A7", "#000000", "#666666"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def axes(ax: Axes | None, figsize: tuple[float, float] = (6.0, 4.0)) -> Axes:
    """These axes, or those of a new figure."""
    if ax is not None:
        return ax
    return new_figure(1, figsize)[0]


def new_figure(num_rows: int, figsize: tuple[float, float]) -> list[Axes]:
    """Axes of a new figure, below each other with a common x."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'lingp[plots]'") from error
    figure = pyplot.figure(figsize=figsize, layout="constrained")
    made = figure.subplots(num_rows, sharex=True, squeeze=False)
    return list(made[:, 0])


def tidy(ax: Axes, *, grid: bool = True) -> None:
    """Without a box, over a light grid."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    if grid:
        ax.grid(True, alpha=0.25, linewidth=0.6)
        ax.set_axisbelow(True)


def legend_above(ax: Axes, columns: int, gap: float = 0.0) -> None:
    """A legend over the axes, where it covers no data."""
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0 + gap),
        ncols=columns,
        frameon=False,
        fontsize="small",
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.8,
    )


def inputs_of(value: Any, name: str, columns: int) -> Array:
    """Inputs as (n x columns); (n,) stands for one column."""
    array = as_array(value, name)
    if array.ndim == 1 and columns == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != columns:
        raise ValueError(
            f"{name}: expected {columns} input column{'s' * (columns > 1)}, (n, {columns}), "
            f"got shape {array.shape}"
        )
    return array


def training_inputs(gp: LinearizedGP, columns: int) -> Array:
    """Those the GP was fitted to, if they are one array of so many columns."""
    given = gp.laplace.training.inputs
    batches = [batch for batch in given if isinstance(batch, torch.Tensor)]
    if len(batches) < len(given):
        raise ValueError("X_train: the GP's inputs are not one array each; give X_train")
    return inputs_of(torch.cat(batches), "X_train", columns)


def training_targets(gp: LinearizedGP) -> Array:
    """Targets the GP was fitted to, without known quantities, (N x T)."""
    targets = gp.laplace.training.targets
    values = targets[..., 0] if targets.dim() == 3 else targets
    return as_array(values.reshape(len(values), -1), "y_train", missing=True)


def column_of(values: Any, output: int) -> Array:
    """One column of (n, *shape)."""
    array = as_array(values, "model", missing=True)
    array = array.reshape(len(array), -1)
    if not 0 <= output < array.shape[1]:
        raise ValueError(f"output: expected 0 .. {array.shape[1] - 1}, got {output}")
    column: Array = array[:, output]
    return column


def is_of_labels(prediction: Prediction) -> bool:
    """Whether it has class probabilities, of one label per row.

    Raises
    ------
    ValueError
        For several labels per row.
    """
    layout = prediction.layout
    if layout.likelihood.num_labels(layout.output_shape) is None:
        return False
    if prediction.probs.dim() != 2:
        raise ValueError(
            f"gp: predicts several labels per row, probabilities {tuple(prediction.probs.shape)}; "
            "pictures are of one label"
        )
    return True


def check_gp(gp: Any) -> None:
    """Raise unless it is a LinearizedGP."""
    if not isinstance(gp, LinearizedGP):
        raise TypeError(f"gp: expected a fitted LinearizedGP, got {type(gp).__name__}")
