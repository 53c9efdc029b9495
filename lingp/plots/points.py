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
    found = gp if isinstance(gp, Influence) else influence(gp)
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
    """Row numbers beside points, above or below where neighbours are in the way."""
    from matplotlib.patheffects import withStroke

    order = np.argsort(x, kind="stable")
    for place, n in enumerate(order):
        offset = (4, 4) if place % 2 == 0 else (4, -10)
        ax.annotate(
            str(int(rows[n])),
            (x[n], y[n]),
            xytext=offset,
            textcoords="offset points",
            fontsize="small",
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )
