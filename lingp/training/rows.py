"""Training data as maximum a posteriori training goes through them: batches without end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lingp.likelihoods import Likelihood
from lingp.linearization import LinearizedNetwork
from lingp.linearization.inputs import Inputs, input_tensors, map_inputs, signature
from lingp.models.fitting import Missing
from lingp.models.intake import as_batches
from lingp.training.fingerprint import digest

FULL_BATCH, BATCH_SIZE = 2048, 256  # all rows up to so many, else batches of this size


@dataclass(frozen=True)
class Batch:
    """Rows of a step, on the network's device.

    Attributes
    ----------
    inputs
        n rows.
    targets
        As the likelihood's `check_targets` gives them.
    weights
        (n,); None: 1.
    """

    inputs: Inputs
    targets: Tensor
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.targets)


Place = Callable[[Inputs, Tensor, Tensor | None], Batch]
"""Checks a batch and brings it to the network's device and dtype."""


class Rows(ABC):
    """Batches without end.

    Attributes
    ----------
    num_rows
        N, of an epoch.
    batches_per_epoch
        How many batches that is.
    """

    num_rows: int
    batches_per_epoch: int

    @abstractmethod
    def next(self) -> Batch:
        """The next batch."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Where the epoch is."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""

    @abstractmethod
    def fingerprint(self) -> str:
        """What tells these data from others."""

    def interrupted(self) -> None:  # noqa: B027  only some have to do something
        """To be called after somebody else went through the data."""


class ArrayRows(Rows):
    """Rows of arrays, in an order drawn for every epoch.

    Parameters
    ----------
    all_rows
        The data.
    batch_size
        By default all rows, or 256 where there are more than 2048. The last batches are made as
        large as the others, or one row less.
    generator
        Draws the orders.
    """

    def __init__(self, all_rows: Batch, batch_size: int | None, generator: torch.Generator) -> None:
        self.all_rows, self.generator = all_rows, generator
        self.num_rows = len(all_rows)
        size = batch_size or (self.num_rows if self.num_rows <= FULL_BATCH else BATCH_SIZE)
        self.batches_per_epoch = -(-self.num_rows // size)
        self._start = generator.get_state()  # of the generator, when the epoch began
        self._position = 0
        self._parts: list[Tensor] = []

    def next(self) -> Batch:
        if self.batches_per_epoch == 1:
            return self.all_rows
        if self._position == len(self._parts):
            self._begin()
        rows = self._parts[self._position]
        self._position += 1
        return Batch(
            map_inputs(itemgetter(rows), self.all_rows.inputs),
            self.all_rows.targets[rows],
            None if self.all_rows.weights is None else self.all_rows.weights[rows],
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "start": self._start.clone(),
            "position": self._position if self._parts else -1,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._parts, self._position = [], 0
        if state["position"] >= 0:
            self.generator.set_state(state["start"])
            self._begin()
            self._position = state["position"]
        self.generator.set_state(state["generator"])

    def fingerprint(self) -> str:
        rows = self.all_rows
        weights = [] if rows.weights is None else [rows.weights]
        return digest(rows.inputs, rows.targets, *weights)

    def _begin(self) -> None:
        self._start, self._position = self.generator.get_state(), 0
        order = torch.randperm(
            self.num_rows, generator=self.generator, device=self.generator.device
        )
        # of nearly equal size: BatchNorm can't do with a single row that is left over
        self._parts = list(
            order.to(self.all_rows.targets.device).tensor_split(self.batches_per_epoch)
        )


class LoaderRows(Rows):
    """What a loader, or any iterable of batches, gives, iterated anew for every epoch.

    To be used where the global generators are private, see `PrivateRandomness`. One epoch is gone
    through to count the rows.

    Parameters
    ----------
    data
        Gives (inputs, targets) or (inputs, targets, weights).
    missing
        Whether targets may be NaN.
    place
        Checks a batch and brings it to the network's device.
    """

    def __init__(
        self,
        data: Iterable[Any],
        missing: bool,
        place: Place,
    ) -> None:
        if isinstance(data, Iterator):
            raise TypeError(
                f"X: {type(data).__name__} can be gone through only once, but training takes many "
                "epochs; give a DataLoader, a list of batches or arrays"
            )
        self.data, self.missing, self.place = data, missing, place
        sizes, first = [], None
        for batch in self._batches():
            first = first or batch
            sizes.append(len(batch))
        if first is None:
            raise ValueError("X: gave no batches; there is nothing to train on")
        self.num_rows, self.batches_per_epoch = sum(sizes), len(sizes)
        self._kind = repr((signature(first.inputs), tuple(first.targets.shape[1:]), self.num_rows))
        self._iterator: Iterator[Batch] | None = None
        self._start: dict[str, Tensor] = {}
        self._position = 0

    def next(self) -> Batch:
        if self._iterator is None:
            self._begin()
        assert self._iterator is not None
        batch = next(self._iterator, None)
        if batch is None:
            self._begin()
            batch = next(self._iterator)
        self._position += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {
            "start": dict(self._start),
            "position": -1 if self._iterator is None else self._position,
            "now": self._generators(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._iterator = None
        if state["position"] >= 0:
            self._set_generators(state["start"])
            self._begin()
            for _ in range(state["position"]):
                self.next()
        self._set_generators(state["now"])

    def fingerprint(self) -> str:
        return self._kind

    def interrupted(self) -> None:
        if getattr(self.data, "persistent_workers", False):
            self._iterator = None  # workers that stay serve one epoch at a time

    def _begin(self) -> None:
        self._start, self._position = self._generators(), 0
        self._iterator = self._batches()

    def _batches(self) -> Iterator[Batch]:
        for inputs, targets, weights in as_batches(self.data, missing=self.missing):
            yield self.place(inputs, targets, weights)

    def _own(self) -> dict[str, torch.Generator]:
        """Generators that the loader was given."""
        owners = {"loader": self.data, "sampler": getattr(self.data, "sampler", None)}
        found = {name: getattr(owner, "generator", None) for name, owner in owners.items()}
        return {name: g for name, g in found.items() if isinstance(g, torch.Generator)}

    def _generators(self) -> dict[str, Tensor]:
        return {
            "global": torch.get_rng_state(),
            **{name: g.get_state() for name, g in self._own().items()},
        }

    def _set_generators(self, states: dict[str, Tensor]) -> None:
        torch.set_rng_state(states["global"])
        for name, generator in self._own().items():
            generator.set_state(states[name])


def training_rows(
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    missing: Missing,
    network: LinearizedNetwork,
    dtype: torch.dtype,
    likelihood: Likelihood,
    batch_size: int | None,
    generator: torch.Generator,
) -> Rows:
    """Batches from arrays, or from what gives batches.

    Parameters
    ----------
    X, y, sample_weight, missing
        As `LinearizedGP.fit` takes them.
    network
        Tells the shape of the outputs.
    dtype
        Of inputs and targets.
    likelihood
        Checks the targets.
    batch_size
        Of arrays and datasets.
    generator
        Draws the order of rows.
    """
    if missing not in ("error", "nan"):
        raise ValueError(f'missing: expected "error" or "nan", got {missing!r}')
    if missing == "nan" and not likelihood.allows_missing:
        raise ValueError(
            f'missing: "nan", but {type(likelihood).__name__} can\'t have missing targets; leave '
            "out rows without a target"
        )
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    device = network.device

    def to(t: Tensor) -> Tensor:
        return t.to(device, dtype if t.is_floating_point() else None)

    def place(inputs: Inputs, targets: Tensor, weights: Tensor | None) -> Batch:
        inputs = map_inputs(to, inputs)
        if network.output_shape is None:
            network(map_inputs(itemgetter(slice(0, 1)), inputs))
        assert network.output_shape is not None
        checked = likelihood.check_targets(targets, tuple(network.output_shape), dtype).to(device)
        return Batch(inputs, checked, None if weights is None else to(weights))

    if y is None and isinstance(X, tuple) and len(X) == 2 and not isinstance(X[1], tuple):
        X, y = X
    if y is not None:
        batches = list(as_batches(X, y, sample_weight, missing=missing == "nan"))
        return ArrayRows(_joined([place(*batch) for batch in batches]), batch_size, generator)
    if batch_size is not None and not isinstance(X, Dataset):
        raise TypeError(
            f"batch_size: goes with arrays and datasets; {type(X).__name__} has batches of its own"
        )
    if sample_weight is not None:
        raise TypeError(
            f"sample_weight: goes with arrays, but X is {type(X).__name__}; let it give (inputs, "
            "targets, weights)"
        )
    if isinstance(X, Dataset):
        shuffle = not isinstance(X, IterableDataset)
        X = DataLoader(X, batch_size or BATCH_SIZE, shuffle=shuffle)
    return LoaderRows(X, missing == "nan", place)


def _joined(batches: list[Batch]) -> Batch:
    """All rows in one."""
    first = batches[0]
    tensors = [input_tensors(batch.inputs) for batch in batches]
    whole = iter([torch.cat(parts) for parts in zip(*tensors, strict=True)])
    weights = [batch.weights for batch in batches if batch.weights is not None]
    return Batch(
        map_inputs(lambda _: next(whole), first.inputs),
        torch.cat([batch.targets for batch in batches]),
        torch.cat(weights) if weights else None,
    )
