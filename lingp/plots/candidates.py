"""Candidates that were compared by their evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lingp.comparison import Comparison
from lingp.plots.style import BLUE, GREY, VERMILION, axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NAMES = 24  # more of them would lie on each other


def evidence_comparison(comparison: Comparison, *, ax: Axes | None = None) -> Axes:
    """Evidence per datum, against test log-likelihood where there are test data.

    The choice is filled; restarts that were not kept are small; candidates that failed are named
    with a cross.

    Parameters
    ----------
    comparison
        What `lingp.comparison.compare_by_evidence` found.
    ax
        Axes to draw on; new ones by default.
    """
    if not isinstance(comparison, Comparison):
        raise TypeError(f"comparison: expected a Comparison, got {type(comparison).__name__}")
    tested = comparison.tested
    height = 4.0 if tested else max(2.0, 0.6 + 0.28 * len(comparison.candidates))
    ax = axes(ax, (6.0, height))
    (_against_test if tested else _in_rows)(ax, comparison)
    ax.set_xlabel("log evidence per datum (nats)")
    tidy(ax)
    return ax


def _against_test(ax: Axes, comparison: Comparison) -> None:
    fine = [c for c in comparison.candidates if c.best_run is not None]
    for c in fine:
        for run in c.runs:
            if not run.finite or run.test_log_likelihood is None:
                continue
            chosen, kept = c is comparison.candidates[0], run is c.best_run
            at = (run.evidence / run.num_data, run.test_log_likelihood)
            _dot(ax, *at, chosen=chosen, kept=kept)
            if kept and (len(fine) <= _MOST_NAMES or chosen):
                ax.annotate(c.name, at, xytext=(5, 4), textcoords="offset points", fontsize="small")
    ax.set_ylabel("test log-likelihood per datum (nats)")
    found = comparison.rank_correlation
    if found is not None:
        ax.set_title(f"Spearman's rank correlation {found.spearman:.2f}", fontsize="medium")
    failed = [c.name for c in comparison.candidates if c.best_run is None]
    if failed:
        text = "× failed: " + ", ".join(failed)
        ax.text(0.0, -0.2, text, transform=ax.transAxes, color=GREY, fontsize="small", wrap=True)


def _in_rows(ax: Axes, comparison: Comparison) -> None:
    across = ax.get_yaxis_transform()
    for row, c in enumerate(comparison.candidates):
        for run in c.runs:
            if run.finite:
                chosen, kept = row == 0, run is c.best_run
                _dot(ax, run.evidence / run.num_data, row, chosen=chosen, kept=kept)
        if c.best_run is None:
            ax.text(
                0.02, row, "× failed", transform=across, va="center", color=GREY, fontsize="small"
            )
    names = [c.name for c in comparison.candidates]
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)


def _dot(ax: Axes, x: float, y: float, *, chosen: bool, kept: bool) -> None:
    colour = VERMILION if chosen else BLUE
    ax.plot(
        x,
        y,
        marker="D" if chosen else "o",
        markersize=7.0 if kept else 3.5,
        markerfacecolor=colour if chosen and kept else "none",
        color=colour,
        alpha=1.0 if kept else 0.6,
        linestyle="none",
    )
