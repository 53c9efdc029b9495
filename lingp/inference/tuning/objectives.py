"""What hyperparameters are chosen by: the evidence, or leave-one-out predictive densities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from torch import Tensor

from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.tuning.leave_one_out import leave_one_out, spectral_leave_one_out
from lingp.inference.tuning.spectrum import has_spectral_evidence, spectral_evidence


class Spectral(Protocol):
    """An objective at the current hyperparameters, from an eigendecomposition made before."""

    def __call__(self) -> Tensor:
        """The objective, 0-d, with a graph to the hyperparameters."""

    def resolved(self, tolerance: float = 0.0) -> bool:
        """Whether rounding of the eigenvalues costs the objective less than `tolerance` nats."""


class Objective(ABC):
    """A function of the hyperparameters of a model, to be maximised.

    Parameters
    ----------
    laplace
        The model.
    """

    name: ClassVar[str]
    words: ClassVar[str]

    def __init__(self, laplace: LinearizedLaplace) -> None:
        self.laplace = laplace

    @abstractmethod
    def value(self) -> Tensor:
        """At the current hyperparameters, 0-d, differentiable where grad mode is on."""

    @abstractmethod
    def spectral(self) -> Spectral | None:
        """The same from one eigendecomposition, where that is possible."""


class LogEvidence(Objective):
    """log q(D)."""

    name = "evidence"
    words = "log marginal likelihood"

    def value(self) -> Tensor:
        return self.laplace.log_marginal_likelihood()

    def spectral(self) -> Spectral | None:
        return spectral_evidence(self.laplace) if has_spectral_evidence(self.laplace) else None


class LeaveOneOutDensity(Objective):
    """Σ_n w_n log p(y_n | all other data)."""

    name = "leave_one_out"
    words = "leave-one-out log predictive density"

    def value(self) -> Tensor:
        return leave_one_out(self.laplace).total()

    def spectral(self) -> Spectral | None:
        return spectral_leave_one_out(self.laplace)


OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind for kind in (LogEvidence, LeaveOneOutDensity)
}
