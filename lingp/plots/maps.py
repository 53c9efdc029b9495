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
    inputs_of,
    legend_above,
    training_inputs,
    training_targets,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

    Lines of a two-class map are where both are as likely; elsewhere they follow the colours. The
    colour map (cividis) rises in lightness and is read in grey as well.

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
        Points to draw; those of the GP by default. Labels get a marker each.
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
    labels = prediction.layout.likelihood.num_labels(prediction.layout.output_shape) is not None
    chosen = what or ("probability" if labels else "mean")
    values, name = _values(prediction, chosen, output, labels)
    ax = axes(ax, (6.0, 4.6))
    _draw(ax, across, up, values.reshape(resolution, resolution), name, chosen)
    _points(ax, known, targets, labels, output or 0)
    ax.set_xlim(x0, x1)
    ax.set_ylim(y0, y1)
    ax.set_xlabel("$x_1$")
    ax.set_ylabel("$x_2$")
    return ax


def _draw(ax: Axes, across: Array, up: Array, values: Array, name: str, what: str) -> None:
    low, high = float(values.min()), float(values.max())
    probability = what == "probability"
    if probability:
        low, high = (0.0, 1.0) if name != "largest probability" else (min(low, 0.5), 1.0)
    if high - low < 1e-12:
        high = low + 1e-12
    shown = ax.contourf(
        across, up, values, levels=np.linspace(low, high, 21), cmap="cividis", extend="neither"
    )
    inner = [0.5] if probability and low == 0 else np.linspace(low, high, 6)[1:-1]
    lines = ax.contour(across, up, values, levels=inner, colors="white", linewidths=0.8)
    if probability and low == 0:
        lines.set_linewidth(1.6)
    bar = ax.figure.colorbar(shown, ax=ax, label=name, pad=0.02)
    ticks = np.linspace(low, high, 6).tolist()
    bar.set_ticks(ticks)
    bar.ax.set_yticklabels([f"{tick:.2g}" for tick in ticks])


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
        return _column(p, output), name.format(output)
    moments = {
        "epistemic": prediction.epistemic_variance,
        "mean": prediction.mean,
        "std": prediction.variance,
    }
    column = _column(as_array(moments[what], "gp"), output or 0)
    return column if what == "mean" else np.sqrt(column), name


def _column(values: Array, output: int) -> Array:
    flat = values.reshape(len(values), -1)
    if not 0 <= output < flat.shape[1]:
        raise ValueError(f"output: expected 0 .. {flat.shape[1] - 1}, got {output}")
    column: Array = flat[:, output]
    return column


def _points(ax: Axes, known: Array, targets: Array | None, labels: bool, output: int) -> None:
    style: dict[str, Any] = {
        "linestyle": "none",
        "markeredgecolor": "black",
        "markeredgewidth": 0.6,
    }
    if targets is None or not labels:
        ax.plot(*known.T, "o", color="white", markersize=3.5, **style)
        return
    column = targets[:, 0]
    classes = np.unique(column[~np.isnan(column)])
    # dark to light as the map: class 0 is dark on it
    for place, label in enumerate(classes):
        ax.plot(
            *known[column == label].T,
            MARKERS[place % len(MARKERS)],
            color=str(place / max(1, len(classes) - 1)),
            markersize=4.5,
            label=f"class {label:g}",
            **style,
        )
    legend_above(ax, min(len(classes), 5))
