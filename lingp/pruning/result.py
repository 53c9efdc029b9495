"""What pruning gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from lingp.models import LinearizedGP

What = Literal["units", "weights"]


@dataclass(frozen=True)
class Removal:
    """A unit or weight that was taken out.

    Attributes
    ----------
    name
        `0[3]` is unit 3 of the layer called 0, `0.weight[3, 1]` a weight, in the given network.
    predicted
        Change of the log evidence that one linearisation expected, in nats.
    evidence
        Log evidence computed for the network after the round it went in.
    """

    name: str
    predicted: float
    evidence: float


@dataclass(frozen=True)
class Pruned:
    """A network without the units or weights that its evidence can do without.

    Attributes
    ----------
    net
        Smaller layers where units of chains Linear, activation, Linear went; else zeros.
    gp
        The pruned network, conditioned on the same data. Weights that are zero stay certain.
    what
        "units" or "weights".
    evidence_before, evidence
        Log evidence of the trained network and of the pruned one.
    predicted
        The log evidence that the linearisations expected of the pruned network.
    weights_before, weights
        Number of weights, those that are zero not counted.
    removed
        The removals, in order.
    masks
        Which weights are left, by parameter name of the given network.
    """

    net: nn.Module
    gp: LinearizedGP
    what: What
    evidence_before: float
    evidence: float
    predicted: float
    weights_before: int
    weights: int
    removed: tuple[Removal, ...]
    masks: dict[str, Tensor]

    def __str__(self) -> str:
        return (
            f"pruned {len(self.removed)} {self.what}: {self.weights_before} -> {self.weights} "
            f"weights, log evidence {self.evidence_before:.2f} -> {self.evidence:.2f} (predicted "
            f"{self.predicted:.2f})"
        )
