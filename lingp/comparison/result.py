"""What a comparison by evidence found: a table, and ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lingp.models import LinearizedGP
from lingp.training import EvidenceTraining
from lingp.training.history import aligned


@dataclass(frozen=True)
class Run:
    """One training of a candidate.

    Attributes
    ----------
    seed
        The seed of its weights; None for what was trained before.
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
        How long training took; NaN for what was trained before.
    test_log_likelihood
        The mean over test rows; None without them.
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
        The name that was given.
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
        """The errors of the runs that failed; None where none did."""
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
        """The Gaussian process of the trained candidate; None where all runs failed."""
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
        How many candidates were compared.
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
        The candidates in this order.
    """

    candidates: tuple[Candidate, ...]

    @classmethod
    def of(cls, candidates: Iterable[Candidate]) -> Comparison:
        """The candidates in the order of evidence."""

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
        rho, tau = (rank(*zip(*pairs, strict=True)) for rank in (spearmanr, kendalltau))
        return RankCorrelation(
            float(rho.statistic), float(tau.statistic), float(tau.pvalue), len(pairs)
        )

    @property
    def regret(self) -> float | None:
        """The cost of the choice: largest test log-likelihood less that of `best`, per test row."""
        pairs = self._pairs()
        return max(test for _, test in pairs) - pairs[0][1] if pairs else None

    @property
    def tested(self) -> bool:
        """Whether there are test data."""
        return bool(self._pairs())

    def _pairs(self) -> list[tuple[float, float]]:
        """Evidence and test log-likelihood of those that have both, in order."""
        return [
            (c.evidence, c.test_log_likelihood)
            for c in self.candidates
            if c.test_log_likelihood is not None
        ]

    def __str__(self) -> str:
        """A table sorted by evidence, in nats; differences are to the row above all others."""
        heads = ["candidate", "evidence", "difference", "per datum", "log-lik.", "γ", "P", "s"]
        rows = [[*heads, "test log-lik."], *(self._row(c) for c in self.candidates)]
        lines = aligned(rows if self.tested else [row[:-1] for row in rows])
        for c in self.candidates:
            if c.failure is not None:
                lines.append(f"{c.name}: {c.failure}")
            lines += [f"{c.name}: stopped, {run.stopped}" for run in c.runs if run.stopped]
        if self.rank_correlation is not None:
            lines.append(str(self.rank_correlation))
            lines.append(f"test log-likelihood lost by this choice: {self.regret:.4f} per row")
        return "\n".join(lines)

    def _row(self, candidate: Candidate) -> list[str]:
        run, test = candidate.best_run, candidate.test_log_likelihood
        if run is None:
            return [candidate.name, "failed", *[""] * 7]
        return [
            candidate.name,
            f"{run.evidence:.2f}",
            f"{run.evidence - self.candidates[0].evidence:.2f}",
            f"{run.evidence / run.num_data:.4f}",
            f"{run.log_likelihood:.2f}",
            f"{run.effective_parameters:.1f}",
            f"{run.num_parameters}",
            f"{run.seconds:.1f}",
            "–" if test is None else f"{test:.4f}",
        ]
