"""Which training points matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lingp.metrics import Influence, influence
from lingp.metrics.arguments import Array
from lingp.models import LinearizedGP
from lingp.plots.style import BLUE, GREY, VERMILION, axes, legend_above, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIDES = ((1, 0.6), (1, -0.6), (-1, 0.6), (-1, -0.6), (0, 1), (0, -1), (1, 0), (-1, 0))
_BESIDE, _LETTER, _LINE = 3.5, 5.5, 9.0  # points: half a marker, a digit, a line


def leverage(
    gp: LinearizedGP | Influence, *, num_labelled: int = 5, ax: Axes | None = None
) -> Axes:
    """Leverage of each training point against its leave-one-out log density.

    To the right are points that determine the function near them: far from others. Low are points
    that others don't predict. Those low and to the right pull hardest; the ones for which the model
    predicts y_n better for having seen it are named by their row.

    Parameters
    ----------
    gp
        With data, or what `lingp.metrics.influence` found.
    num_labelled
        How many points to name.
    ax
        Axes to draw on; new ones by default.
    """
    found: Influence = influence(gp) if isinstance(gp, LinearizedGP) else gp
    if num_labelled < 0:
        raise ValueError(f"num_labelled: expected 0 or more, got {num_labelled}")
    ax = axes(ax)
    x, y = found.leverage, found.leave_one_out
    most = np.argsort(-found.gain, kind="stable")[:num_labelled]
    rest = np.setdiff1d(np.arange(len(x)), most)
    ax.plot(x[rest], y[rest], "o", color=BLUE, markersize=4, alpha=0.6, label="training points")
    ax.plot(x[most], y[most], "D", color=VERMILION, markersize=5.5, label="most influential rows")
    ax.axvline(
        x.mean(),
        color=GREY,
        linestyle="--",
        linewidth=1,
        label=f"mean leverage (γ = {x.sum():.1f})",
    )
    ax.margins(0.08)
    _name(ax, x[most], y[most], most)
    ax.set_xlabel("leverage: share of the effective parameters")
    ax.set_ylabel("leave-one-out log density (nats)")
    tidy(ax)
    legend_above(ax, 3)
    return ax


def _name(ax: Axes, x: Array, y: Array, rows: NDArray[np.intp]) -> None:
    """Row numbers beside points, on a side where there is no other number or named point."""
    from matplotlib.patheffects import withStroke

    centres = ax.transData.transform(np.stack([x, y], axis=1)) * 72 / ax.figure.dpi
    taken = [(centre, np.full(2, _BESIDE)) for centre in centres]  # middles and half sizes
    for at in np.argsort(x, kind="stable"):
        text = str(int(rows[at]))
        half = np.array([_LETTER * len(text), _LINE]) / 2
        sides = [(_BESIDE + half) * np.array(side) for side in _SIDES]
        covered = [_overlaps(centres[at] + side, half, taken) for side in sides]
        side = sides[int(np.argmin(covered))]
        taken.append((centres[at] + side, half))
        ax.annotate(
            text,
            (x[at], y[at]),
            xytext=tuple(side),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )


def _overlaps(centre: Array, half: Array, taken: list[tuple[Array, Array]]) -> int:
    """How many of these boxes a number would lie on."""
    return sum(bool((np.abs(centre - c) < half + h).all()) for c, h in taken)
