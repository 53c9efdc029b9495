"""A network with its hyperparameters, kept aside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from lingp.likelihoods import Likelihood
from lingp.priors import Prior
from lingp.runtime.tensors import Tensors, set_tensors, tensors_of


@dataclass(frozen=True)
class State:
    """Values of network, prior and likelihood at some step of training.

    Attributes
    ----------
    step
        Of the optimizer, counted from 1.
    network, prior, likelihood
        Copies of all their tensors, by name.
    """

    step: int
    network: Tensors
    prior: Tensors
    likelihood: Tensors

    @classmethod
    def of(cls, step: int, network: nn.Module, prior: Prior, likelihood: Likelihood) -> State:
        """As they are now."""
        return cls(step, tensors_of(network), tensors_of(prior), tensors_of(likelihood))

    def restore(self, network: nn.Module, prior: Prior, likelihood: Likelihood) -> None:
        """Put the values back, in place."""
        set_tensors(network, self.network)
        set_tensors(prior, self.prior)
        set_tensors(likelihood, self.likelihood)

    def to_dict(self) -> dict[str, Any]:
        """For `torch.save`."""
        return dict(vars(self))


class KeptStates:
    """The last good state, and that of the largest evidence if it is wanted.

    Parameters
    ----------
    keep_best
        Whether it is.
    """

    def __init__(self, keep_best: bool) -> None:
        self.keep_best = keep_best
        self.good: State | None = None
        self.best: State | None = None
        self.largest = -math.inf
        self.since_largest = 0

    def accept(self, state: State, evidence: float) -> None:
        """A good state with its evidence."""
        self.good = state
        self.since_largest += 1
        if evidence > self.largest:
            self.largest, self.since_largest = evidence, 0
            self.best = state if self.keep_best else None

    def state_dict(self) -> dict[str, Any]:
        """For `torch.save`."""
        return {
            "good": None if self.good is None else self.good.to_dict(),
            "best": None if self.best is None else self.best.to_dict(),
            "largest": self.largest,
            "since_largest": self.since_largest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.good = None if state["good"] is None else State(**state["good"])
        self.best = None if state["best"] is None else State(**state["best"])
        self.largest, self.since_largest = state["largest"], state["since_largest"]
