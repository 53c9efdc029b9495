"""Exact inference in weight space or in function space as a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lingp.inference.function_space import FunctionSpace
from lingp.inference.posterior import Posterior
from lingp.inference.prior_values import PriorValues
from lingp.inference.protocol import InferenceMethod, Made, PosteriorMaker, stored_as
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_space import WeightSpace
from lingp.likelihoods import CurvatureRoot

SPACES: dict[str, type[WeightSpace] | type[FunctionSpace]] = {
    cls.__name__: cls for cls in (WeightSpace, FunctionSpace)
}


@stored_as("exact")
@dataclass(frozen=True)
class Exact(InferenceMethod):
    """Exact inference by one Cholesky factorisation.

    Attributes
    ----------
    space
        `WeightSpace` or `FunctionSpace`: of which matrix.
    """

    space: type[WeightSpace] | type[FunctionSpace]

    @property
    def title(self) -> str:  # type: ignore[override]
        """What errors call it."""
        return "weight space" if self.space is WeightSpace else "function space"

    @property
    def predicts_with_data(self) -> bool:  # type: ignore[override]
        """In function space, predictions take the kernel with the training data."""
        return self.space is FunctionSpace

    def __call__(self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot) -> Posterior:
        return self.space(training, prior, root)

    def to_plain(self) -> dict[str, Any]:
        return {"name": self.space.__name__}

    @classmethod
    def from_plain(cls, plain: dict[str, Any], training: TrainingSet) -> Exact:
        return cls(SPACES[plain["name"]])

    def restored(
        self, state: dict[str, Any], training: TrainingSet, prior: PriorValues, root: CurvatureRoot
    ) -> Posterior:
        return self.space.with_factor(state, training, prior, root)


def as_method(method: InferenceMethod | PosteriorMaker) -> InferenceMethod:
    """A method as it is, a class of exact posteriors as `Exact`, anything else that is called."""
    if isinstance(method, InferenceMethod):
        return method
    if isinstance(method, type) and SPACES.get(method.__name__) is method:
        return Exact(SPACES[method.__name__])
    return Made(method)
