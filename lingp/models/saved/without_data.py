"""A posterior that was loaded without its training data: it predicts, and can't be made anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from lingp.inference import (
    DataTerm,
    Evidence,
    LinearizedLaplace,
    Mode,
    Solution,
    TrainingSet,
)
from lingp.inference.conditioned import Conditioned
from lingp.inference.evidence import evidence
from lingp.inference.origin import Origin
from lingp.likelihoods import CurvatureRoot, Likelihood
from lingp.linearization import Factors, LinearizedNetwork
from lingp.models.fitting import FittedData
from lingp.operators.batches import Batch
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
    saved_evidence
        What `evidence` gives.
    """

    saved_evidence: Evidence | None = None

    @property
    def conditioned(self) -> Conditioned:
        kept = self._kept
        now = super().conditioned
        if kept is not None and now is not kept[2]:
            self._kept = kept
            refuse("a posterior for other hyperparameters than those it was saved with")
        return now

    @property
    def data_term(self) -> DataTerm:
        """Not there: what searches or leaves out data begins with it."""
        refuse("a search for hyperparameters, or leaving out data")

    def matched(self) -> float:
        if not self.conditioned.knows("matched"):
            refuse("the scale of the mean that is matched to the data")
        return super().matched()

    def mode(self) -> Mode:
        if not self.conditioned.knows("mode_and_posterior"):
            refuse("mode")
        return super().mode()

    def curvature_root(self) -> CurvatureRoot:
        refuse("the curvature at the training data")

    def log_marginal_likelihood(self) -> Tensor:
        refuse("log_marginal_likelihood, which can be differentiated (evidence() has its value)")

    def solution(self) -> Solution:
        refuse("derivatives of the evidence")


@evidence.register
def _(laplace: LaplaceLeftOut) -> Evidence:
    """As it was when the GP was saved."""
    laplace.posterior()  # raises where hyperparameters have changed
    assert laplace.saved_evidence is not None
    return laplace.saved_evidence
