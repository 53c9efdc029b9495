"""What training with the evidence gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lingp.likelihoods import Likelihood
from lingp.models import LinearizedGP
from lingp.priors import Prior
from lingp.training.history import History


@dataclass(frozen=True)
class EvidenceTraining:
    """A network trained with the evidence.

    Attributes
    ----------
    net
        The trained copy of the network, in evaluation mode.
    prior, likelihood
        Prior and likelihood with the hyperparameters found.
    gp
        `LinearizedGP` of the network, conditioned on the training data.
    history
        The hyperparameter steps, in order; prints as a table.
    stopped
        Why training ended before its time, in words; None if it didn't.
    step
        The step of the optimizer from which network and hyperparameters are.
    """

    net: nn.Module
    prior: Prior
    likelihood: Likelihood
    gp: LinearizedGP
    history: History = field(default_factory=History)
    stopped: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        ended = "" if self.stopped is None else f"\nstopped: {self.stopped}"
        return f"state after step {self.step}\n{self.history}{ended}"
