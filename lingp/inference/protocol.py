"""Inference methods: what makes the posteriors of one training set, and how files keep them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from lingp.inference.features import Features, WhitenedJacobian
from lingp.inference.origin import Origin
from lingp.inference.posterior import OccamFactor, Posterior
from lingp.inference.prior_values import PriorValues
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot, DiagonalRoot
from lingp.priors import Prior
from lingp.runtime.plain import from_plain, own, to_plain

PosteriorMaker = Callable[[TrainingSet, PriorValues, CurvatureRoot], Posterior]
"""A `Posterior` class, or anything that is called like one."""


class InferenceMethod(ABC):
    """What makes posteriors of one training set, at any hyperparameters.

    A method in a file of its own that is decorated with `stored_as` is saved and loaded like those
    of lingp. `Options` are what users write for one before there are data.
    """

    title: ClassVar[str]
    """What errors call it."""

    predicts_with_data: bool = False
    """Whether predictions take the training data again."""

    @abstractmethod
    def __call__(self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot) -> Posterior:
        """The posterior for a prior and a curvature root."""

    def occam_factor(
        self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot
    ) -> OccamFactor:
        """What the evidence takes; the posterior itself, unless a method has no posterior."""
        return self(training, prior, root)

    def features(self, training: TrainingSet, prior: PriorValues) -> Features:
        """The features of its posteriors, before there is one."""
        variances = prior.variances().to(training.outputs)
        return WhitenedJacobian(training, training.per_weight(variances).sqrt())

    def carried_over(self, training: TrainingSet, origin: Origin) -> InferenceMethod | None:
        """The method for changed data with what it keeps; None for one that keeps nothing."""
        return None

    def inputs_in_file(self) -> str:
        """What a file without the training data has of them nevertheless, in words."""
        return ""

    def to_plain(self) -> dict[str, Any]:
        """The method with what it knows of its data, for a file.

        Raises
        ------
        TypeError
            For a method of the user's own.
        """
        raise TypeError(f"inference: {self.title} can't be saved")

    @classmethod
    def from_plain(cls, plain: dict[str, Any], training: TrainingSet) -> InferenceMethod:
        """What `to_plain` made it from, for the same data."""
        raise TypeError(f"inference: {cls.title} can't be loaded")

    def restored(
        self, state: dict[str, Any], training: TrainingSet, prior: PriorValues, root: CurvatureRoot
    ) -> Posterior:
        """The posterior that had this `Posterior.state`."""
        raise TypeError(f"inference: {self.title} can't be loaded")


class Options(ABC):
    """An inference method as the user asks for it, before there are data."""

    predicts: ClassVar[bool] = True
    """Whether there will be a posterior to predict with."""

    streams: ClassVar[bool] = False
    """Whether it goes over the data without keeping their Jacobian."""

    generator: torch.Generator | None = None
    """Source of randomness; None for one with the same seed each time."""

    @abstractmethod
    def bind(self, training: TrainingSet, prior: Prior, memory: float) -> InferenceMethod:
        """The method for these data.

        Parameters
        ----------
        training
            The training data.
        prior
            A bound prior; its current variances are those of the kernel that rules use.
        memory
            Bytes that may be used.
        """


M = TypeVar("M", bound=type[InferenceMethod])

_KINDS: dict[str, type[InferenceMethod]] = {}


def stored_as(kind: str) -> Callable[[M], M]:
    """Decorate a method that files can keep, under this name."""

    def register(cls: M) -> M:
        _KINDS[kind] = cls
        return cls

    return register


def method_to_plain(method: InferenceMethod) -> dict[str, Any]:
    """A method for a file."""
    for kind, cls in _KINDS.items():
        if type(method) is cls:
            return {"kind": kind, **method.to_plain()}
    return method.to_plain()  # which raises


def method_from_plain(plain: dict[str, Any], training: TrainingSet) -> InferenceMethod:
    """What `method_to_plain` made it from, for the same data."""
    return _KINDS[plain["kind"]].from_plain(plain, training)


@torch.no_grad()
def posterior_to_plain(posterior: Posterior, *, with_root: bool) -> dict[str, Any]:
    """A posterior without its training data and method.

    Parameters
    ----------
    posterior
        Without a graph.
    with_root
        Whether the curvature at every training datum goes along.
    """
    return {
        "variances": own(posterior.variances),
        "isotropic": posterior.isotropic,
        "groups": to_plain(posterior.groups),
        "root": to_plain(posterior.root) if with_root else None,
        **posterior.state(),
    }


@torch.no_grad()
def posterior_from_plain(
    plain: dict[str, Any],
    training: TrainingSet,
    method: InferenceMethod,
    root: CurvatureRoot | None = None,
) -> Posterior:
    """What `posterior_to_plain` made it from, with nothing computed again.

    Parameters
    ----------
    plain
        Of the file.
    training, method
        Those of the posterior.
    root
        Its curvature root, where the file has none; of no data by default.
    """
    values = PriorValues(plain["variances"], plain["isotropic"], plain["groups"])
    if plain["root"] is not None:
        root = from_plain(plain["root"])
    root = root or DiagonalRoot(training.outputs[:0])
    return method.restored(plain, training, values, root)


@dataclass(frozen=True)
class Made(InferenceMethod):
    """A method of the user's own: what makes posteriors, and no more."""

    make: PosteriorMaker
    title: ClassVar[str] = "a method of one's own"

    def __call__(self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot) -> Posterior:
        return self.make(training, prior, root)
