"""What a comparison by evidence found: a table, ranks and a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lingp.models import LinearizedGP
from lingp.training.evidence_training import EvidenceTraining

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito (2008), told apart by all common kinds of colour vision
_BLUE, _VERMILION, _GREY = "#0072B2", "#D55E00", "#777777"
_MOST_NAMES = 24  # more of them would lie on each other


@dataclass(frozen=True)
class Run:
    """One training of a candidate.

    Attributes
    ----------
    seed
        Of its weights; None for what was trained before.
    trained
        The result; None where training stopped with `error`.
    error
        What stopped it.
    evidence, log_likelihood
        Log marginal likelihood, and Σ_n log p(y_n | f_n), in nats.
    effective_parameters, num_parameters
        γ of P weights.
    num_data
        Training rows N.
    seconds
        Of training; NaN for what was trained before.
    test_log_likelihood
        Mean over test rows; None without them.
    """

    seed: int | None
    trained: EvidenceTraining | LinearizedGP | None = None
    error: Exception | None = None
    evidence: float = math.nan
    log_likelihood: float = math.nan
    effective_parameters: float = math.nan
    num_parameters: int = 0
    num_data: int = 0
    seconds: float = math.nan
    test_log_likelihood: float | None = None

    @property
    def stopped(self) -> str | None:
        """Why training ended before its time, with a state that can be compared all the same."""
        return self.trained.stopped if isinstance(self.trained, EvidenceTraining) else None

    @property
    def finite(self) -> bool:
        """Whether there is an evidence to compare."""
        return self.trained is not None and math.isfinite(self.evidence)


@dataclass(frozen=True)
class Candidate:
    """A candidate and its runs; that of the largest evidence stands for it.

    Attributes
    ----------
    name
        As given.
    runs
        One for each restart.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def best_run(self) -> Run | None:
        """The run of the largest evidence; None where all failed."""
        return max((r for r in self.runs if r.finite), key=lambda r: r.evidence, default=None)

    @property
    def failure(self) -> str | None:
        """What stopped the runs that failed; None where none did."""
        errors = [
            r.error or ValueError(f"evidence {r.evidence}") for r in self.runs if not r.finite
        ]
        if not errors:
            return None
        share = f"{len(errors)} of {len(self.runs)} runs: " if len(self.runs) > 1 else ""
        return f"{share}{type(errors[0]).__name__}: {errors[0]}"

    @property
    def trained(self) -> EvidenceTraining | LinearizedGP | None:
        """The trained candidate; None where all runs failed."""
        return None if self.best_run is None else self.best_run.trained

    @property
    def gp(self) -> LinearizedGP | None:
        """Its Gaussian process; None where all runs failed."""
        trained = self.trained
        return trained.gp if isinstance(trained, EvidenceTraining) else trained

    @property
    def evidence(self) -> float:
        """Log marginal likelihood in nats; NaN where all runs failed."""
        return math.nan if self.best_run is None else self.best_run.evidence

    @property
    def test_log_likelihood(self) -> float | None:
        """Mean over test rows, of the run with the largest evidence."""
        return None if self.best_run is None else self.best_run.test_log_likelihood


@dataclass(frozen=True)
class RankCorrelation:
    """How well the order by evidence is that by test log-likelihood.

    Attributes
    ----------
    spearman
        Spearman's ρ.
    kendall, kendall_p
        Kendall's τ_b and its two-sided p-value.
    number
        Of candidates compared.
    """

    spearman: float
    kendall: float
    kendall_p: float
    number: int

    def __str__(self) -> str:
        return (
            f"evidence and test log-likelihood of {self.number} candidates: Spearman "
            f"{self.spearman:.2f}, Kendall {self.kendall:.2f} "
            f"(p = {self.kendall_p:.2g})"
        )


@dataclass(frozen=True)
class Comparison:
    """Candidates by evidence, the largest first, those that failed last.

    Attributes
    ----------
    candidates
        In this order.
    """

    candidates: tuple[Candidate, ...]

    @classmethod
    def of(cls, candidates: Iterable[Candidate]) -> Comparison:
        """In the order of evidence."""

        def place(candidate: Candidate) -> float:
            return math.inf if candidate.best_run is None else -candidate.evidence

        return cls(tuple(sorted(candidates, key=place)))

    def __getitem__(self, name: str) -> Candidate:
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        raise KeyError(f"{name!r}; there are {[c.name for c in self.candidates]}")

    @property
    def best(self) -> EvidenceTraining | LinearizedGP:
        """The trained candidate of the largest evidence."""
        trained = self.candidates[0].trained
        if trained is None:
            raise RuntimeError("every candidate failed: see `candidates[i].failure`")
        return trained

    @property
    def rank_correlation(self) -> RankCorrelation | None:
        """Between evidence and test log-likelihood; None without test data or three candidates."""
        from scipy.stats import kendalltau, spearmanr

        pairs = self._pairs()
        if len(pairs) < 3:
            return None
        rho = spearmanr(*zip(*pairs, strict=True))
        tau = kendalltau(*zip(*pairs, strict=True))
        return RankCorrelation(
            float(rho.statistic),
            float(tau.statistic),
            float(tau.pvalue),
            len(pairs),
        )

    @property
    def regret(self) -> float | None:
        """What the choice costs: largest test log-likelihood less that of `best`, per test row."""
        pairs = self._pairs()
        return max(test for _, test in pairs) - pairs[0][1] if pairs else None

    def _pairs(self) -> list[tuple[float, float]]:
        """Evidence and test log-likelihood of those that have both, in order."""
        runs = [c.best_run for c in self.candidates]
        return [
            (r.evidence, r.test_log_likelihood)
            for r in runs
            if r is not None and r.test_log_likelihood is not None
        ]

    def __str__(self) -> str:
        """A table sorted by evidence, in nats; differences are to the row above all others."""
        tested = bool(self._pairs())
        header = ["candidate", "evidence", "difference", "per datum", "log-lik.", "γ", "P", "s"]
        rows = [header + (["test log-lik."] if tested else [])]
        for c in self.candidates:
            run = c.best_run
            if run is None:
                rows.append([c.name, f"failed: {c.failure}"])
                continue
            row = [
                c.name,
                f"{run.evidence:.2f}",
                f"{run.evidence - self.candidates[0].evidence:.2f}",
                f"{run.evidence / run.num_data:.4f}",
                f"{run.log_likelihood:.2f}",
                f"{run.effective_parameters:.1f}",
                f"{run.num_parameters}",
                f"{run.seconds:.1f}",
            ]
            if tested:
                test = run.test_log_likelihood
                row.append("–" if test is None else f"{test:.4f}")
            rows.append(row)
        lines = _aligned(rows)
        for c in self.candidates:
            if c.best_run is not None and c.failure is not None:
                lines.append(f"{c.name}: {c.failure}")
            lines += [f"{c.name}: stopped, {run.stopped}" for run in c.runs if run.stopped]
        if self.rank_correlation is not None:
            lines.append(str(self.rank_correlation))
            lines.append(f"test log-likelihood lost by this choice: {self.regret:.4f} per row")
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Evidence per datum, against test log-likelihood where there are test data.

        The choice is filled; restarts that were not kept are small; candidates that failed are
        named with a cross.

        Parameters
        ----------
        ax
            Axes to draw on; new ones by default. Needs matplotlib (`pip install lingp[plots]`).
        """
        from matplotlib import pyplot

        if ax is None:
            height = 4.0 if self._pairs() else max(2.0, 0.6 + 0.28 * len(self.candidates))
            ax = pyplot.subplots(figsize=(6.0, height), layout="constrained")[1]
        if self._pairs():
            self._scatter(ax)
        else:
            self._dots(ax)
        ax.set_xlabel("log evidence per datum (nats)")
        ax.grid(True, alpha=0.25, linewidth=0.6)
        ax.set_axisbelow(True)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        return ax

    def _scatter(self, ax: Any) -> None:
        fine = [c for c in self.candidates if c.best_run is not None]
        for c in fine:
            for run in c.runs:
                if not run.finite or run.test_log_likelihood is None:
                    continue
                chosen, kept = c is self.candidates[0], run is c.best_run
                at = (run.evidence / run.num_data, run.test_log_likelihood)
                _dot(ax, *at, chosen=chosen, kept=kept)
                if kept and (len(fine) <= _MOST_NAMES or chosen):
                    ax.annotate(
                        c.name, at, xytext=(5, 4), textcoords="offset points", fontsize="small"
                    )
        ax.set_ylabel("test log-likelihood per datum (nats)")
        found = self.rank_correlation
        if found is not None:
            ax.set_title(f"Spearman's rank correlation {found.spearman:.2f}", fontsize="medium")
        failed = [c.name for c in self.candidates if c.best_run is None]
        if failed:
            ax.text(
                0.0,
                -0.2,
                "× failed: " + ", ".join(failed),
                transform=ax.transAxes,
                color=_GREY,
                fontsize="small",
                wrap=True,
            )

    def _dots(self, ax: Any) -> None:
        for row, c in enumerate(self.candidates):
            for run in c.runs:
                if run.finite:
                    chosen, kept = row == 0, run is c.best_run
                    _dot(ax, run.evidence / run.num_data, row, chosen=chosen, kept=kept)
            if c.best_run is None:
                ax.plot(
                    0.02, row, "x", color=_GREY, transform=ax.get_yaxis_transform(), clip_on=False
                )
                ax.annotate(
                    "failed",
                    (0.04, row),
                    xycoords=ax.get_yaxis_transform(),
                    va="center",
                    color=_GREY,
                    fontsize="small",
                )
        ax.set_yticks(range(len(self.candidates)), [c.name for c in self.candidates])
        ax.set_ylim(len(self.candidates) - 0.5, -0.5)


def _dot(ax: Any, x: float, y: float, *, chosen: bool, kept: bool) -> None:
    colour = _VERMILION if chosen else _BLUE
    face = colour if chosen and kept else "none"
    size, alpha = (7.0, 1.0) if kept else (3.5, 0.6)
    ax.plot(
        x,
        y,
        marker="D" if chosen else "o",
        markersize=size,
        markerfacecolor=face,
        color=colour,
        alpha=alpha,
        linestyle="none",
    )


def _aligned(rows: list[list[str]]) -> list[str]:
    """Columns of equal width, the first to the left, numbers to the right."""
    full = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[i]) for row in full) for i in range(len(rows[0]))]
    widths[0] = max(widths[0], *(len(row[0]) for row in rows))
    lines = []
    for row in rows:
        if len(row) < len(rows[0]):
            lines.append(f"{row[0]:<{widths[0]}}  {row[1]}")
            continue
        cells = [f"{row[0]:<{widths[0]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    return lines
