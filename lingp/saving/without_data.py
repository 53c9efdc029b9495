"""A posterior that was loaded without its training data: it predicts, and can't be made anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from lingp.inference import Evidence, LinearizedLaplace, Mode, Posterior, Solution, TrainingSet
from lingp.inference.batches import Batch
from lingp.inference.evidence import evidence
from lingp.inference.origin import Origin
from lingp.inference.shards import Shards
from lingp.likelihoods import CurvatureRoot, Likelihood
from lingp.linearization import Factors, LinearizedNetwork
from lingp.models.fitting import FittedData
from lingp.saving.errors import DataLeftOutError


class TrainingSetLeftOut(TrainingSet):
    """A training set of which only sizes and dtypes are known.

    Parameters
    ----------
    linearized
        The network.
    outputs, targets
        Of no rows.
    num_data
        N, as it was.
    factor_bytes, chunk_bytes
        As in `TrainingSet`.
    """

    def __init__(
        self,
        linearized: LinearizedNetwork,
        outputs: Tensor,
        targets: Tensor,
        num_data: int,
        *,
        factor_bytes: int,
        chunk_bytes: int,
    ) -> None:
        super().__init__(
            linearized,
            [],
            outputs,
            targets,
            None,
            factor_bytes=factor_bytes,
            chunk_bytes=chunk_bytes,
        )
        self._num_data = num_data

    @property
    def num_data(self) -> int:
        """N, as it was."""
        return self._num_data

    def factors(self) -> Factors:
        _refuse("The Jacobian of the training data")

    def chunks(self) -> Iterator[tuple[slice, Factors]]:
        _refuse("The Jacobian of the training data")

    def factors_at(self, index: Tensor) -> Factors:
        _refuse("The Jacobian of the training data")

    def subset(self, index: Tensor, shards: Shards | None = None) -> TrainingSet:
        _refuse("A part of the training data")


class FittedDataLeftOut(FittedData):
    """Data that were fitted once and aren't there any more."""

    def extend(self, X: Any, y: Any, sample_weight: Any) -> None:
        _refuse("add_data")

    def remove(self, rows: Tensor) -> Origin:
        _refuse("remove_data")

    def held_out(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        _refuse("optimize_hyperparameters")

    def exchange_likelihood(self, likelihood: Likelihood) -> None:
        _refuse("another likelihood")


@dataclasses.dataclass
class LaplaceLeftOut(LinearizedLaplace):
    """The posterior that was saved, for the hyperparameters it was saved with.

    Attributes
    ----------
    saved_posterior, saved_shift, saved_mode, saved_evidence
        What `posterior`, `weight_shift`, `mode` and `evidence` give.
    """

    saved_posterior: Posterior | None = None
    saved_shift: Tensor | None = None
    saved_mode: Mode | None = None
    saved_evidence: Evidence | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._saved_for = [t.detach().clone() for t in self._values()]

    def posterior(self) -> Posterior:
        self._check_same()
        assert self.saved_posterior is not None
        return self.saved_posterior

    def weight_shift(self) -> Tensor | None:
        self._check_same()
        return self.saved_shift

    def mode(self) -> Mode:
        self._check_same()
        if self.saved_mode is None:
            _refuse("mode")
        return self.saved_mode

    def curvature_root(self) -> CurvatureRoot:
        _refuse("The curvature at the training data")

    def log_marginal_likelihood(self) -> Tensor:
        _refuse("A differentiable evidence (evidence() has its value)")

    def solution(self) -> Solution:
        _refuse("A derivative of the evidence, leave-one-out or another search")

    def prior_outputs(self) -> Tensor:
        _refuse("The prior's mean at the training data")

    def _values(self) -> list[Tensor]:
        """What the posterior depends on, as far as it can change."""
        likelihood = self.likelihood
        state = [*likelihood.parameters(), *likelihood.buffers()]
        return [self.prior.variances(), self.prior.mean, *state]

    def _check_same(self) -> None:
        now = self._values()
        same = len(now) == len(self._saved_for) and all(
            a.shape == b.shape and torch.equal(a, b.to(a))
            for a, b in zip(now, self._saved_for, strict=True)
        )
        if not same:
            _refuse("A posterior for other hyperparameters than those it was saved with")


@evidence.register
def _(laplace: LaplaceLeftOut) -> Evidence:
    """As it was when the GP was saved."""
    laplace.posterior()  # raises where hyperparameters have changed
    assert laplace.saved_evidence is not None
    return laplace.saved_evidence


def _refuse(what: str) -> NoReturn:
    raise DataLeftOutError(what)
