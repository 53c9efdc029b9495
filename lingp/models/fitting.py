"""The data a `LinearizedGP` has seen: what the user gave, and the training set made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from lingp.inference import TrainingSet
from lingp.inference.origin import Origin
from lingp.likelihoods import Likelihood
from lingp.linearization import LinearizedNetwork
from lingp.linearization.inputs import Inputs
from lingp.models.class_weights import ClassWeight, class_factors
from lingp.models.intake import Batch, as_batches
from lingp.runtime.memory import format_bytes
from lingp.runtime.shards import Shards

Missing = Literal["error", "nan"]


class FittedData:
    """Targets as they were given, sample and class weights, and the training set.

    Targets are checked by the likelihood, and weights are sample weights times class weights. Both
    are worked out anew, for all rows, when rows are added or the likelihood is exchanged.

    Parameters
    ----------
    linearized
        The network.
    likelihood
        Checks targets and knows their labels.
    class_weight
        See `class_factors`; None for no class weights.
    missing
        "nan": NaN targets were not observed. "error": they are refused.
    shards
        How rows are spread over processes; each is given its own.
    memory
        Bytes that may be used.
    """

    training: TrainingSet

    note: str | None = None
    """Where the data come from, in words; None where they were given."""

    def __init__(
        self,
        linearized: LinearizedNetwork,
        likelihood: Likelihood,
        *,
        class_weight: ClassWeight | None = None,
        missing: Missing = "error",
        shards: Shards | None = None,
        memory: float = math.inf,
    ) -> None:
        if missing not in ("error", "nan"):
            raise ValueError(f'missing: expected "error" or "nan", got {missing!r}')
        self.linearized = linearized
        self.likelihood = likelihood
        self.class_weight = class_weight
        self.missing: Missing = missing
        self.shards = shards or Shards.single()
        self.memory = memory
        self._given: list[Tensor] = []
        self._sample_weights: Tensor | None = None

    def collect(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> None:
        """Run the network over the data; `options` are those of `TrainingSet.collect`."""

        def make(batches: Iterable[Batch]) -> TrainingSet:
            return TrainingSet.collect(self.linearized, batches, shards=self.shards, **options)

        self._take(make, X, y, sample_weight)

    def extend(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Add rows; nothing is recomputed for those there are."""
        training = self.training
        weights, training.weights = training.weights, self._sample_weights
        try:
            self._take(training.extended, X, y, sample_weight)
        except BaseException:
            training.weights = weights
            raise

    def remove(self, rows: Tensor) -> Origin:
        """Take rows away, by their numbers in the order they were given; says what was left."""
        training = self.training
        removed = rows.to(training.outputs.device).sort().values
        left = torch.ones(training.num_data, dtype=torch.bool, device=removed.device)
        left[removed] = False
        kept = left.nonzero().squeeze(-1)
        if self._nowhere(len(kept) > 0):
            raise ValueError("rows: are all there are; nothing would be left")
        origin = Origin(kept, removed, training.subset(removed) if len(removed) else None)
        sample_weights = self._sample_weights
        if sample_weights is not None:
            sample_weights = sample_weights[kept]
        smaller = training.subset(kept, self.shards)
        smaller.weights = self._weights(self.likelihood, smaller.targets, sample_weights)
        sizes = [len(y) for y in self._given]
        parts = zip(self._given, left.cpu().split(sizes), strict=True)
        self._given = [y[here.to(y.device)] for y, here in parts if bool(here.any())]
        self.training, self._sample_weights = smaller, sample_weights
        return origin

    @property
    def given(self) -> list[Tensor]:
        """Targets as they were given, batch by batch."""
        return self._given

    @property
    def sample_weights(self) -> Tensor | None:
        """Weights as they were given, (N,)."""
        return self._sample_weights

    def restore(
        self, training: TrainingSet, given: list[Tensor], sample_weights: Tensor | None
    ) -> None:
        """Take data over that were collected and checked before."""
        self.training, self._given, self._sample_weights = training, given, sample_weights

    def held_out(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Batches that are not among the data, with targets checked; class weights don't count."""
        return self._checked(iter(batches), [])

    def exchange_likelihood(self, likelihood: Likelihood) -> None:
        """Check the targets by another likelihood."""
        training, shape = self.training, self._output_shape()
        self._check_missing(likelihood)

        def check() -> Tensor:
            dtype = training.outputs.dtype
            return torch.cat([likelihood.check_targets(y, shape, dtype) for y in self._given])

        targets = self.shards.attempt(check).to(training.outputs.device)
        weights = self._weights(likelihood, targets, self._sample_weights)
        self.likelihood, training.targets, training.weights = likelihood, targets, weights

    def _take(
        self, make: Callable[[Iterable[Batch]], TrainingSet], X: Any, y: Any, sample_weight: Any
    ) -> None:
        self._check_missing(self.likelihood)
        given: list[Tensor] = []

        def batches() -> Iterator[Batch]:
            yield from as_batches(X, y, sample_weight, missing=self.missing == "nan")

        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            training = make(self._checked(batches(), given))
        sample_weights = training.weights
        if self._nowhere(sample_weights is None or bool((sample_weights > 0).any())):
            raise ValueError("sample_weight: all weights are zero; there is nothing to fit")
        values = training.targets if training.targets.dim() == 2 else training.targets[..., 0]
        if self._nowhere(not bool(values.isnan().all())):
            raise ValueError("y: every target is missing; there is nothing to fit")
        training.weights = self._weights(self.likelihood, training.targets, sample_weights)
        self.training, self._sample_weights = training, sample_weights
        self._given = self._given + given

    def _checked(self, batches: Iterator[Batch], given: list[Tensor]) -> Iterator[Batch]:
        """Batches with targets flat, checked by the likelihood."""
        dtype, device = self.linearized.dtype, self.linearized.device
        for x, y, weights in batches:
            if not given:
                self.linearized(x)  # tells the output's shape
                self._check_memory(x)
                self._num_labels(self.likelihood)
            targets = self.likelihood.check_targets(y, self._output_shape(), dtype)
            given.append(y)
            moved = None if weights is None else weights.to(device, dtype)
            yield x, targets.to(device), moved
        if not given:
            raise ValueError("X: gave no batches; there is nothing to fit")

    def _check_memory(self, x: Inputs) -> None:
        """Raise if a single row's Jacobian takes more memory than there is."""
        needed = self.linearized.bytes_per_row(x)
        if needed > self.memory:
            raise MemoryError(
                f"the Jacobian at one row of X, of {self.linearized.num_outputs} outputs, keeps "
                f"{format_bytes(needed)} of activations and gradients alive, more than the "
                f"{format_bytes(self.memory)} of memory there is. Raise memory_budget, or choose "
                'fewer weights (parameters="last_layer" or a name pattern)'
            )

    def _check_missing(self, likelihood: Likelihood) -> None:
        if self.missing == "nan" and not likelihood.allows_missing:
            raise ValueError(
                f'missing: "nan", but {type(likelihood).__name__} can\'t have missing targets; '
                "leave out rows without a target"
            )

    def _num_labels(self, likelihood: Likelihood) -> int | None:
        """Number of classes that class weights are for; None without class weights."""
        if self.class_weight is None:
            return None
        num_labels = likelihood.num_labels(self._output_shape())
        if num_labels is None:
            raise ValueError(
                f"class_weight: needs one class label per row, but {type(likelihood).__name__} "
                f"with outputs of shape {self._output_shape()} has none; use sample_weight"
            )
        return num_labels

    def _weights(
        self, likelihood: Likelihood, targets: Tensor, sample_weights: Tensor | None
    ) -> Tensor | None:
        """Sample weights times class weights, (N,)."""
        num_labels = self._num_labels(likelihood)
        if self.class_weight is None or num_labels is None:
            return sample_weights
        labels = targets.reshape(len(targets))
        factors = class_factors(self.class_weight, labels, num_labels, sample_weights, self.shards)
        weights = factors if sample_weights is None else sample_weights * factors
        if self._nowhere(bool((weights > 0).any())):
            raise ValueError("class_weight: leaves no row a positive weight")
        return weights

    def _nowhere(self, here: bool) -> bool:
        """Whether something holds on no rank."""
        return self.shards.largest(here) == 0

    def _output_shape(self) -> tuple[int, ...]:
        assert self.linearized.output_shape is not None
        return tuple(self.linearized.output_shape)
