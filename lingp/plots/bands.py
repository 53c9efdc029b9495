"""Predictive bands over one input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from lingp.likelihoods.predictives.draws import quasi_normal
from lingp.likelihoods.predictives.gaussian import GaussianPredictive
from lingp.likelihoods.predictives.heteroscedastic import HeteroscedasticPredictive
from lingp.linalg.psd import psd_root
from lingp.metrics.arguments import Array, as_array, between_zero_and_one
from lingp.models import LinearizedGP, Prediction
from lingp.plots.style import (
    BLACK,
    BLUE,
    GREY,
    SKY,
    VERMILION,
    axes,
    column_of,
    inputs_of,
    is_of_labels,
    legend_above,
    tidy,
    training_inputs,
    training_targets,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEYOND = 0.25  # of the training inputs' range, on either side
_NUM_POINTS = 300
_NUM_NODES = 2048
_VIEW = 2.0  # how much more than the range of the data is shown, below and above


def bands(
    model: LinearizedGP | Prediction,
    X: Any = None,
    y: Any = None,
    *,
    X_train: Any = None,
    y_train: Any = None,
    levels: Sequence[float] = (0.5, 0.95),
    output: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Predictive mean, intervals of the targets, and within them those of the function.

    Shaded are the central intervals of y, one shade per level. Between the dashed lines is E[y | f]
    at the highest level: what is not known of the function, and what more data would take away;
    the rest of the shade is noise. For class labels, the probability of class `output` and what is
    not known of it. For `Heteroscedastic` noise the line is the median (see `Prediction.median`).

    Parameters
    ----------
    model
        A fitted GP, or the prediction at X.
    X
        One input per row. For a GP by default a grid over its training data and a quarter of their
        range on either side.
    y
        Targets at X, e.g. test data; not drawn by default.
    X_train, y_train
        Points to draw; those of the GP by default.
    levels
        Probabilities of the intervals. Where they explode, the y axis ends at twice the range of
        the data beyond them.
    output
        Which target or class of several; the first by default, of two classes the second.
    ax
        Axes to draw on; new ones by default.
    """
    heights = np.sort(as_array(levels, "levels").reshape(-1))[::-1]
    between_zero_and_one(heights, "levels")
    x = _inputs(model, X)
    if isinstance(model, LinearizedGP):
        prediction = model.predict(x.astype(str(model.dtype).removeprefix("torch.")))
        if X_train is None and y_train is None:
            X_train, y_train = training_inputs(model, 1), training_targets(model)
    else:
        prediction = model
    if prediction.layout.num_rows != len(x):
        raise ValueError(
            f"X: has {len(x)} rows, but the prediction is of {prediction.layout.num_rows}"
        )
    order = np.argsort(x[:, 0], kind="stable")
    at = x[order, 0]
    labels = is_of_labels(prediction)
    if labels and output is None:
        output = 1 if prediction.probs.shape[1] == 2 else 0
    output = output or 0
    name, centre = _centre(prediction, labels)
    ends = [column_of(end, output)[order] for end in _function(prediction, float(heights[0]))]
    known = _points(X_train, y_train, output, labels)
    given = _points(None if y is None else x, y, output, labels, names=("X", "y"))
    bounds = [] if labels else [prediction.interval(float(level)) for level in heights]
    ax = axes(ax)
    if not labels:
        for shade, (level, interval) in enumerate(zip(heights, bounds, strict=True)):
            lower, upper = (column_of(end, output)[order] for end in interval)
            strength = 0.25 + 0.35 * shade / max(1, len(heights) - 1)
            ax.fill_between(
                at, lower, upper, color=SKY, alpha=strength, linewidth=0, label=f"y, {level:.0%}"
            )
    for end, label in zip(ends, (f"function, {heights[0]:.0%}", None), strict=True):
        ax.plot(at, end, color=VERMILION, linestyle=(0, (4, 1.5)), linewidth=1.2, label=label)
    ax.plot(at, column_of(centre, output)[order], color=BLUE, linewidth=1.8, label=name)
    _draw_points(ax, known, "training data", BLACK, BLACK)
    _draw_points(ax, given, "data at X", GREY, "none")
    if not labels:
        _keep_in_view(ax, [points[1] for points in (known, given) if points is not None])
    ax.set_xlabel("x")
    ax.set_ylabel(f"probability of class {output}" if labels else "y")
    ax.margins(x=0)
    if labels:
        ax.set_ylim(-0.04, 1.04)
    tidy(ax)
    legend_above(ax, 5 if y is None else 3, gap=0.04)  # of the axis' power of ten
    return ax


def _inputs(model: Any, X: Any) -> Array:
    if not isinstance(model, LinearizedGP | Prediction):
        raise TypeError(
            f"model: expected a LinearizedGP or a Prediction, got {type(model).__name__}"
        )
    if X is not None:
        return inputs_of(X, "X", 1)
    if isinstance(model, Prediction):
        raise ValueError("X: missing; a prediction doesn't know its inputs")
    known = training_inputs(model, 1)
    beyond = _BEYOND * (known.max() - known.min())
    grid: Array = np.linspace(known.min() - beyond, known.max() + beyond, _NUM_POINTS)
    return grid[:, None]


def _centre(prediction: Prediction, labels: bool) -> tuple[str, Tensor]:
    """The line in the middle, (n, *shape)."""
    if labels:
        return "probability", prediction.probs
    if isinstance(prediction.predictive, HeteroscedasticPredictive):
        return "median", prediction.median
    return "mean", prediction.mean


@torch.no_grad()
def _function(prediction: Prediction, level: float) -> tuple[Tensor, Tensor]:
    """Central interval of E[y | f], (n x M): quantiles over quasi-random functions at each row."""
    predictive, layout = prediction.predictive, prediction.layout
    if isinstance(predictive, GaussianPredictive):
        half = norm.ppf((1 + level) / 2) * predictive.epistemic_variance.sqrt()
        return predictive.mean - half, predictive.mean + half
    location = prediction.mean_scale * prediction.latent_mean
    normal = quasi_normal(_NUM_NODES, location)
    root = psd_root(prediction.latent_covariance)
    f = location + torch.einsum("ncd,sd->snc", root, normal)
    means = layout.likelihood.conditional_mean(f)
    if layout.likelihood.num_labels(layout.output_shape) is not None and means.shape[-1] == 1:
        means = torch.cat([1 - means, means], -1)
    tails = means.new_tensor([(1 - level) / 2, (1 + level) / 2])
    lower, upper = means.quantile(tails, dim=0)
    return lower, upper


def _keep_in_view(ax: Axes, targets: list[Array]) -> None:
    """Not so much of bands that explode that the data can't be seen."""
    if not targets:
        return
    drawn = np.concatenate(targets)
    low, high = np.nanmin(drawn), np.nanmax(drawn)
    beyond = _VIEW * (high - low)
    if beyond > 0:
        bottom, top = ax.get_ylim()
        ax.set_ylim(max(bottom, low - beyond), min(top, high + beyond))


def _points(
    X: Any, y: Any, output: int, labels: bool, names: tuple[str, str] = ("X_train", "y_train")
) -> tuple[Array, Array] | None:
    """Inputs and targets to draw, (n,) each; labels as whether they are this one."""
    if X is None and y is None:
        return None
    if X is None or y is None:
        raise ValueError(f"{names[0]} and {names[1]}: give both or neither")
    x, values = inputs_of(X, names[0], 1)[:, 0], as_array(y, names[1], missing=True)
    if len(values) != len(x):
        raise ValueError(f"{names[1]}: has {len(values)} rows, but {names[0]} has {len(x)}")
    return x, (values.reshape(-1) == output) * 1.0 if labels else column_of(values, output)


def _draw_points(
    ax: Axes, points: tuple[Array, Array] | None, name: str, edge: str, face: str
) -> None:
    if points is not None:
        ax.plot(
            *points,
            "o",
            markersize=3.5,
            color=edge,
            markerfacecolor=face,
            label=name,
            zorder=3,
        )
