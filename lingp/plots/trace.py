"""What training with the evidence learned, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lingp.plots.style import BLUE, CYCLE, DASHES, VERMILION, new_figure, tidy
from lingp.training import EvidenceTraining, History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = 3
_MOST_LINES = 12  # more values of one hyperparameter are shown as their range


def evidence_trace(
    history: EvidenceTraining | History, ax: Axes | Sequence[Axes] | None = None
) -> Any:
    """Evidence and log likelihood, effective parameters, and hyperparameters of each update.

    Parameters
    ----------
    history
        Of a training, or the training.
    ax
        Axes to draw on: one for evidence and log likelihood alone, or three for all; three new ones
        below each other by default.

    Returns
    -------
    Axes or numpy.ndarray of Axes
        One, or three, as given.
    """
    if isinstance(history, EvidenceTraining):
        history = history.history
    if not isinstance(history, History):
        raise TypeError(
            f"history: expected an EvidenceTraining or its History, got {type(history).__name__}"
        )
    if not history:
        raise ValueError("history: has no steps")
    given = (
        new_figure(_PANELS, (6.0, 6.0))
        if ax is None
        else list(np.ravel(np.asarray(ax, dtype=object)))
    )
    if len(given) not in (1, _PANELS):
        raise ValueError(f"ax: expected one or three Axes, got {len(given)}")
    steps = [step.step for step in history]
    counted = all(step is not None for step in steps)
    x = np.array(steps if counted else range(1, len(history) + 1), dtype=float)
    for panel, draw in zip(given, (_evidence, _effective, _hyperparameters), strict=False):
        draw(panel, x, history)
        tidy(panel)
    given[-1].set_xlabel("step of the optimizer" if counted else "update")
    if len(given) == _PANELS and given[0].figure is given[2].figure:
        given[0].figure.align_ylabels(given)
    return given[0] if len(given) == 1 else np.array(given)


def _evidence(ax: Axes, x: Any, history: History) -> None:
    ax.plot(x, [s.evidence for s in history], "o-", color=BLUE, markersize=3.5, label="evidence")
    ax.plot(
        x,
        [s.log_likelihood for s in history],
        "s--",
        color=VERMILION,
        markersize=3.5,
        markerfacecolor="white",
        label="log likelihood",
    )
    ax.set_ylabel("nats")
    _legend_beside(ax)


def _effective(ax: Axes, x: Any, history: History) -> None:
    gamma = [s.effective_parameters for s in history]
    ax.plot(x, gamma, "o-", color=BLUE, markersize=3.5, label="γ")
    ax.set_ylabel("effective\nparameters γ")


def _hyperparameters(ax: Axes, x: Any, history: History) -> None:
    """One line for each value; many values of one are shown as range and median."""
    values = {
        name: np.array([np.ravel(step.hyperparameters[name]) for step in history], dtype=float)
        for name in history[0].hyperparameters
    }
    positive = all((v > 0).all() for v in values.values() if v.size)
    marker = "o" if len(x) == 1 else ""
    number = 0
    for name, table in values.items():
        many = table.shape[1] > _MOST_LINES - len(values)
        color = CYCLE[number % len(CYCLE)]
        short = name.split(".")[-1].removeprefix("raw_").replace("_", " ")
        if many:
            ax.fill_between(x, table.min(1), table.max(1), color=color, alpha=0.25, linewidth=0)
            middle = np.median(table, axis=1)
            ax.plot(x, middle, color=color, marker=marker, label=f"{short} (median, range)")
            number += 1
            continue
        for column in range(table.shape[1]):
            label = f"{short} {column}" if table.shape[1] > 1 else short
            dash = DASHES[number % len(DASHES)]
            color = CYCLE[number % len(CYCLE)]
            ax.plot(x, table[:, column], color=color, linestyle=dash, marker=marker, label=label)
            number += 1
    if positive:
        _log_axis(ax)
    else:
        sizes = np.abs(np.concatenate([v.ravel() for v in values.values()]))
        if (sizes > 0).any():
            ax.set_yscale("symlog", linthresh=max(sizes[sizes > 0].min(), 1e-3))
    ax.set_ylabel("hyper-\nparameters")
    if number:
        _legend_beside(ax)


def _log_axis(ax: Axes) -> None:
    """Labelled at 1, 2 and 5: a decade or less has labels, too."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _legend_beside(ax: Axes) -> None:
    ax.legend(
        loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small", handlelength=2
    )
