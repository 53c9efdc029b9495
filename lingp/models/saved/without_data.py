"""A posterior that was loaded without its training data: it predicts, and can't be made anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from lingp.inference import (
    DataTerm,
    Evidence,
    LinearizedLaplace,
    Mode,
    Posterior,
    Solution,
    TrainingSet,
)
from lingp.inference.batches import Batch
from lingp.inference.evidence import evidence
from lingp.inference.origin import Origin
from lingp.likelihoods import CurvatureRoot, Likelihood
from lingp.linearization import Factors, LinearizedNetwork
from lingp.models.fitting import FittedData
from lingp.runtime.shards import Shards
from lingp.saving.errors import refuse


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
        refuse("the Jacobian at the training data")

    def chunks(self) -> Iterator[tuple[slice, Factors]]:
        refuse("the Jacobian at the training data")

    def factors_at(self, index: Tensor) -> Factors:
        refuse("the Jacobian at the training data")

    def subset(self, index: Tensor, shards: Shards | None = None) -> TrainingSet:
        refuse("a part of the data")


class FittedDataLeftOut(FittedData):
    """Data that were fitted once and aren't there any more."""

    def extend(self, X: Any, y: Any, sample_weight: Any) -> None:
        refuse("add_data")

    def remove(self, rows: Tensor) -> Origin:
        refuse("remove_data")

    def held_out(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        refuse("optimize_hyperparameters")

    def exchange_likelihood(self, likelihood: Likelihood) -> None:
        refuse("another likelihood")


@dataclasses.dataclass
class LaplaceLeftOut(LinearizedLaplace):
    """The posterior that was saved, for the hyperparameters it was saved with.

    Attributes
    ----------
    saved_posterior, saved_shift, saved_mode, saved_evidence
        What `posterior`, `weight_shift`, `mode` and `evidence` give.
    saved_matched
        What `matched` gives; None where it wasn't asked for before.
    """

    saved_posterior: Posterior | None = None
    saved_shift: Tensor | None = None
    saved_mode: Mode | None = None
    saved_evidence: Evidence | None = None
    saved_matched: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._saved_for = [t.detach().clone() for t in self._values()]

    @property
    def data_term(self) -> DataTerm:
        """Not there: what searches or leaves out data begins with it."""
        refuse("a search for hyperparameters, or leaving out data")

    def posterior(self) -> Posterior:
        self._check_same()
        assert self.saved_posterior is not None
        return self.saved_posterior

    def weight_shift(self) -> Tensor | None:
        self._check_same()
        return self.saved_shift

    def matched(self) -> float:
        self._check_same()
        if self.saved_matched is None:
            refuse("the scale of the mean that is matched to the data")
        return self.saved_matched

    def mode(self) -> Mode:
        self._check_same()
        if self.saved_mode is None:
            refuse("mode")
        return self.saved_mode

    def curvature_root(self) -> CurvatureRoot:
        refuse("the curvature at the training data")

    def log_marginal_likelihood(self) -> Tensor:
        refuse("log_marginal_likelihood, which can be differentiated (evidence() has its value)")

    def solution(self) -> Solution:
        refuse("derivatives of the evidence")

    def prior_outputs(self) -> Tensor:
        refuse("the prior's mean at the training data")

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
            refuse("a posterior for other hyperparameters than those it was saved with")


@evidence.register
def _(laplace: LaplaceLeftOut) -> Evidence:
    """As it was when the GP was saved."""
    laplace.posterior()  # raises where hyperparameters have changed
    assert laplace.saved_evidence is not None
    return laplace.saved_evidence
