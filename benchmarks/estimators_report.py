"""Tables of `estimators.py`, and where lingp stands on each set."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import scores
from harness import table
from harness.records import Records, Scores

Splits = Mapping[int, Mapping[str, Scores]]  # split, method

HEADERS = {
    "nll": "NLL",
    "new": "of new rows",
    "rmse": "RMSE",
    "coverage": "coverage of 90 %",
    "interval": "interval score",
    "accuracy": "accuracy",
    "ece": "ECE",
    "brier": "Brier",
}
REGRESSION = ("nll", "new", "rmse", "coverage", "interval")
CLASSIFICATION = ("nll", "accuracy", "ece", "brier")


def values(splits: Splits, method: str, score: str) -> list[float]:
    """One score of one method over the splits that have it, in their order."""
    return [splits[i][method][score] for i in sorted(splits) if method in splits[i]]


def present(splits: Splits, methods: Sequence[str]) -> list[str]:
    """The methods that any split has, in the order given."""
    return [m for m in methods if any(m in found for found in splits.values())]


@dataclass(frozen=True)
class Standing:
    """Where one method stands among others on one set: pair by pair, on the splits that both have.

    Attributes
    ----------
    rival
        The best of the others: the one that the method's mean NLL exceeds by most.
    num_splits
        That both have.
    difference, paired_error
        Mean of the method's NLL minus the rival's, split by split, and its standard error.
    rival_error
        Standard error of the rival's own mean NLL.
    is_worst
        Whether the method's mean NLL exceeds that of all others.
    """

    rival: str
    num_splits: int
    difference: float
    paired_error: float
    rival_error: float
    is_worst: bool

    @property
    def is_best(self) -> bool:
        return self.difference < 0

    @property
    def within_paired(self) -> bool:
        """Best, or behind by no more than the standard error of the paired difference."""
        return self.is_best or self.difference <= self.paired_error

    @property
    def within_best(self) -> bool:
        """Best, or behind by no more than the standard error of the best mean."""
        return self.is_best or self.difference <= self.rival_error


def pairs(splits: Splits, method: str, rival: str, score: str) -> tuple[list[float], list[float]]:
    """Scores of both on the splits that both have."""
    both = {i: found for i, found in splits.items() if method in found and rival in found}
    return values(both, method, score), values(both, rival, score)


def standing(
    splits: Splits, method: str, methods: Sequence[str], score: str = "nll"
) -> Standing | None:
    """Of one method among others; None where there is nothing to compare."""
    found = {m: pairs(splits, method, m, score) for m in methods if m != method}
    differences = {
        m: [one - other for one, other in zip(*pair, strict=True)]
        for m, pair in found.items()
        if pair[0]
    }
    if not differences:
        return None
    means = {m: statistics.fmean(difference) for m, difference in differences.items()}
    rival = max(means, key=means.__getitem__)
    return Standing(
        rival,
        len(differences[rival]),
        *scores.mean_and_error(differences[rival]),
        scores.mean_and_error(found[rival][1])[1],
        min(means.values()) > 0,
    )


def score_table(records: Records, methods: Sequence[str], kinds: Sequence[str]) -> str:
    """Mean ± standard error over splits of each set and method; the best NLL in bold."""
    rows = []
    for name, splits in records.items():
        field = present(splits, methods)
        means = {m: statistics.fmean(values(splits, m, "nll")) for m in field}
        for method in field:
            found = {kind: values(splits, method, kind) for kind in kinds}
            cells = [scores.cell(found[kind]) for kind in kinds]
            if means[method] == min(means.values()):
                cells[0] = f"**{cells[0]}**"
            seconds = statistics.median(values(splits, method, "seconds"))
            rows.append([name, method, str(len(found["nll"])), *cells, _seconds(seconds)])
    header = ["set", "method", "splits", *(HEADERS[kind] for kind in kinds), "s"]
    return table.markdown_table(header, rows)


def _seconds(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def standing_table(found: Mapping[str, Standing]) -> str:
    """Against the best of the others, set by set."""

    def word(s: Standing) -> str:
        if s.is_best:
            return "best"
        if s.is_worst:
            return "worst"
        kinds = [w for w, met in (("paired", s.within_paired), ("best's", s.within_best)) if met]
        return f"within one s.e. ({', '.join(kinds)})" if kinds else "behind"

    rows = [
        [
            name,
            s.rival,
            str(s.num_splits),
            f"{s.difference:+.3f} ± {s.paired_error:.3f}",
            f"{s.rival_error:.3f}",
            word(s),
        ]
        for name, s in found.items()
    ]
    header = ["set", "best of the others", "splits", "NLL less its NLL", "its s.e.", ""]
    return table.markdown_table(header, rows)


def comparison(
    records: Records,
    method: str,
    methods: Sequence[str],
    target: int | None = None,
    score: str = "nll",
) -> str:
    """Table and counts of one method among others; with a target, whether it is met."""
    found = {
        name: s
        for name, splits in records.items()
        if (s := standing(splits, method, methods, score)) is not None
    }
    if not found:
        return ""
    number = len(found)
    best = [name for name, s in found.items() if s.is_best]
    worst = [name for name, s in found.items() if s.is_worst]
    paired = sum(s.within_paired for s in found.values())
    unpaired = sum(s.within_best for s in found.values())

    def verdict(count: int) -> str:
        if target is None:
            return ""
        return f" (target ≥ {target}: {'met' if count >= target else 'not met'})"

    lines = [
        f"{method} among {'; '.join(m for m in methods if m != method)}, in pairs, on the splits "
        f"that both have{'' if score == 'nll' else ', by NLL ' + HEADERS[score]}:",
        "",
        standing_table(found),
        "",
        f"- best on {len(best)} of {number} sets ({', '.join(best) or 'none'})",
        f"- best or within one standard error of the paired difference on {paired} of {number}"
        f"{verdict(paired)}",
        f"- best or within one standard error of the best row's own mean on {unpaired} of {number}"
        f"{verdict(unpaired)}",
        f"- worst on {len(worst)} ({', '.join(worst) or 'none'})"
        + ("" if target is None else f" (target 0: {'not met' if worst else 'met'})"),
    ]
    return "\n".join(lines)
