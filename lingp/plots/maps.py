"""Maps of probabilities and uncertainty over two inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from lingp.metrics.arguments import Array, as_array
from lingp.models import LinearizedGP, Prediction
from lingp.plots.style import (
    MARKERS,
    axes,
    check_gp,
    column_of,
    inputs_of,
    is_of_labels,
    legend_above,
    training_inputs,
    training_targets,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import ContourSet

What = Literal["probability", "entropy", "mutual_information", "epistemic", "mean", "std"]

_NAMES = {
    "probability": "probability of class {}",
    "entropy": "entropy (nats)",
    "mutual_information": "mutual information (nats)",
    "epistemic": "epistemic standard deviation",
    "mean": "mean",
    "std": "standard deviation",
}
_BEYOND = 0.25


def map_2d(
    gp: LinearizedGP,
    bounds: Any = None,
    what: What | None = None,
    *,
    resolution: int = 80,
    output: int | None = None,
    X_train: Any = None,
    y_train: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """A quantity of the predictive distribution over a plane of inputs, with training points.

    Lines of a map of probabilities are where the most probable class changes; elsewhere they follow
    the colours, which rise in lightness (cividis) and are read in grey as well.

    Parameters
    ----------
    gp
        Fitted to two inputs.
    bounds
        ((x0, x1), (y0, y1)), or inputs (n, 2) whose range to cover; by default that of the training
        data and a quarter more on every side.
    what
        "probability" (of class `output`; the largest of all classes where there are several and
        none is named), "entropy" or "mutual_information" of class labels; "epistemic" (standard
        deviation of E[y | f]), "mean" or "std" of y. By default "probability" or "mean".
    resolution
        Points along each side.
    output
        Which target or class.
    X_train, y_train
        Points to draw; those of the GP by default. Labels get a marker each, and in a map of the
        mean, targets have the colours of the map.
    ax
        Axes to draw on; new ones by default.
    """
    check_gp(gp)
    known = training_inputs(gp, 2) if X_train is None else inputs_of(X_train, "X_train", 2)
    if y_train is None:
        targets = training_targets(gp) if X_train is None else None
    else:
        targets = as_array(y_train, "y_train", missing=True).reshape(len(y_train), -1)
        if len(targets) != len(known):
            raise ValueError(f"y_train: has {len(targets)} rows, but X_train has {len(known)}")
    if resolution < 2:
        raise ValueError(f"resolution: expected at least 2, got {resolution}")
    (x0, x1), (y0, y1) = _bounds(bounds, known)
    across, up = np.linspace(x0, x1, resolution), np.linspace(y0, y1, resolution)
    grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    prediction = gp.predict(torch.as_tensor(grid).to(gp.dtype))
    labels = is_of_labels(prediction)
    chosen = what or ("probability" if labels else "mean")
    values, name = _values(prediction, chosen, output, labels)
    ax = axes(ax, (6.0, 4.6))
    square = values.reshape(resolution, resolution)
    lines = chosen != "probability"  # of the map itself; else where the most probable class changes
    one_class = not lines and (output is not None or prediction.probs.shape[-1] == 2)
    limits = (0.0, 1.0) if one_class else None
    shown = _draw(ax, across, up, square, name, limits=limits, lines=lines)
    if not lines:
        p = as_array(prediction.probs, "gp").reshape(resolution, resolution, -1)
        _boundaries(ax, across, up, p, output)
    if targets is None or not labels:
        colors = None if targets is None or chosen != "mean" else column_of(targets, output or 0)
        _values_at(ax, known, colors, shown)
    else:
        _labels_at(ax, known, targets[:, 0])
    ax.set_xlim(x0, x1)
    ax.set_ylim(y0, y1)
    ax.set_xlabel("$x_1$")
    ax.set_ylabel("$x_2$")
    return ax


def _draw(
    ax: Axes,
    across: Array,
    up: Array,
    values: Array,
    name: str,
    *,
    limits: tuple[float, float] | None,
    lines: bool,
) -> ContourSet:
    """The map and its colour bar, which has these limits or those of the values."""
    from matplotlib.ticker import MaxNLocator

    low, high = float(values.min()), float(values.max())
    levels = MaxNLocator(20).tick_values(low, high)
    if limits is not None:
        levels = np.linspace(*limits, 21).tolist()
    shown = ax.contourf(across, up, values, levels=levels, cmap="cividis")
    ax.figure.colorbar(shown, ax=ax, label=name, pad=0.02, ticks=MaxNLocator(6))
    if lines:
        inner = MaxNLocator(5).tick_values(low, high)
        ax.contour(
            across, up, values, levels=inner, colors="white", linewidths=0.6, linestyles="solid"
        )
    return shown


def _boundaries(ax: Axes, across: Array, up: Array, p: Array, output: int | None) -> None:
    """Where one class becomes more probable than all others; that of one class, or all."""
    every = range(1 if p.shape[-1] == 2 else 0, p.shape[-1])  # of two, one boundary
    for k in every if output is None else [output]:
        lead = p[..., k] - np.delete(p, k, axis=-1).max(axis=-1)
        if lead.min() < 0 < lead.max():
            ax.contour(across, up, lead, levels=[0.0], colors="white", linewidths=1.6)


def _bounds(bounds: Any, known: Array) -> Array:
    if bounds is None:
        low, high = known.min(axis=0), known.max(axis=0)
        beyond = _BEYOND * np.where(high > low, high - low, 1.0)
        return np.stack([low - beyond, high + beyond], axis=1)
    array = inputs_of(bounds, "bounds", 2)
    found = array if array.shape == (2, 2) else np.stack([array.min(axis=0), array.max(axis=0)], 1)
    if not (found[:, 0] < found[:, 1]).all():
        raise ValueError(
            f"bounds: expected ((x0, x1), (y0, y1)) that ascend, or inputs (n, 2), got {bounds}"
        )
    return found


def _values(
    prediction: Prediction, what: str, output: int | None, labels: bool
) -> tuple[Array, str]:
    """The quantity at each point, and what to call it."""
    if what not in _NAMES:
        raise ValueError(f"what: expected one of {', '.join(map(repr, _NAMES))}, got {what!r}")
    name = _NAMES[what]
    if what in ("probability", "entropy", "mutual_information"):
        if not labels:
            raise ValueError(
                f'what: {what!r} is for class labels; use "mean", "std" or "epistemic"'
            )
        if what != "probability":
            return as_array(getattr(prediction, what), "gp").reshape(-1), name
        p = as_array(prediction.probs, "gp")
        if output is None and p.shape[-1] > 2:
            return p.max(axis=-1), "largest probability"
        output = 1 if output is None else output
        return column_of(p, output), name.format(output)
    moments = {
        "epistemic": prediction.epistemic_variance,
        "mean": prediction.mean,
        "std": prediction.variance,
    }
    column = column_of(as_array(moments[what], "gp"), output or 0)
    return column if what == "mean" else np.sqrt(column), name


def _values_at(ax: Axes, known: Array, values: Array | None, shown: ContourSet) -> None:
    """Points, in the colours of the map where they have values that it shows."""
    style: dict[str, Any] = {"s": 16, "linewidths": 0.6, "zorder": 3}
    if values is None:
        style |= {"color": "white", "edgecolors": "black"}
    else:
        style |= {"c": values, "cmap": shown.cmap, "norm": shown.norm, "edgecolors": "white"}
    ax.scatter(known[:, 0], known[:, 1], **style)


def _labels_at(ax: Axes, known: Array, labels: Array) -> None:
    """A marker for each class, dark to light as the map of two classes."""
    classes = np.unique(labels[~np.isnan(labels)])
    for place, label in enumerate(classes):
        grey = place / max(1, len(classes) - 1)
        ax.plot(
            *known[labels == label].T,
            MARKERS[place % len(MARKERS)],
            color=str(grey),
            markersize=5,
            label=f"class {label:g}",
            linestyle="none",
            markeredgecolor="white" if grey < 0.5 else "black",
            markeredgewidth=0.6,
        )
    legend_above(ax, min(len(classes), 5))
