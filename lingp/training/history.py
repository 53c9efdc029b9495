"""What hyperparameter steps found, and the table of all of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EvidenceStep:
    """The result of a hyperparameter step.

    Attributes
    ----------
    evidence_before, evidence
        Log marginal likelihood at the weights as they were, before and after the step.
    log_likelihood
        Σ_n w_n log p(y_n | f_n) after it.
    effective_parameters
        γ = tr (I + Φ Φᵀ)⁻¹ Φ Φᵀ, the number of directions that the data determine.
    hyperparameters
        Value of each hyperparameter of prior and likelihood, as nested lists.
    seconds
        How long it took.
    at_bounds
        How many precisions are held at the ends of their range: weights that the data say nothing
        about, or everything.
    step
        The step of the optimizer after which it came; None in a loop of your own.
    loss, learning_rate
        The loss of maximum a posteriori training at that step, in nats per row of the data, and
        the learning rate of the step.
    """

    evidence_before: float
    evidence: float
    log_likelihood: float
    effective_parameters: float
    hyperparameters: dict[str, Any]
    seconds: float
    at_bounds: int = 0
    step: int | None = None
    loss: float | None = None
    learning_rate: float | None = None

    def __str__(self) -> str:
        return str(History([self]))


class History(list[EvidenceStep]):
    """The hyperparameter steps of a training, in order; prints as a table."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain values, for `torch.save` or a data frame."""
        return [dataclasses.asdict(step) for step in self]

    @classmethod
    def from_dicts(cls, steps: list[dict[str, Any]]) -> History:
        """The history that `to_dicts` gave."""
        return cls(EvidenceStep(**step) for step in steps)

    def __str__(self) -> str:
        names = list(self[0].hyperparameters) if self else []
        heads = ["step", "evidence", "before", "log lik", "γ", "loss", "rate", *names, "s"]
        return "\n".join(aligned([heads, *(_cells(step) for step in self)]))


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows of a table as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]


def _cells(step: EvidenceStep) -> list[str]:
    return [
        "" if step.step is None else str(step.step),
        f"{step.evidence:.2f}",
        f"{step.evidence_before:.2f}",
        f"{step.log_likelihood:.2f}",
        f"{step.effective_parameters:.1f}",
        "" if step.loss is None else f"{step.loss:.4g}",
        "" if step.learning_rate is None else f"{step.learning_rate:.2g}",
        *(_summary(value) for value in step.hyperparameters.values()),
        f"{step.seconds:.2f}",
    ]


def _summary(value: Any) -> str:
    """A number, or the range of many."""
    numbers = _flat(value)
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return f"{low:.3g}" if low == high else f"{low:.3g} .. {high:.3g}"


def _flat(value: Any) -> list[float]:
    if isinstance(value, list):
        return [number for part in value for number in _flat(part)]
    return [value]
