"""Batches from a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from lingp.inference.batches import Batch
from lingp.linearization.inputs import Inputs, signature
from lingp.models.intake import as_batches


class LoaderBatches:
    """Batches of a loader, or of any iterable of batches, which is iterated anew for every epoch.

    It is used where the global generators are private, see `PrivateRandomness`. One epoch is gone
    through to count the rows.

    Parameters
    ----------
    data
        Gives (inputs, targets) or (inputs, targets, weights).
    missing
        Whether targets may be NaN.
    place
        Checks a batch and brings it to the network's device and dtype.

    Attributes
    ----------
    num_rows, batches_per_epoch
        N, of an epoch, and how many batches that is.
    """

    def __init__(
        self,
        data: Iterable[Any],
        missing: bool,
        place: Callable[[Inputs, Tensor, Tensor | None], Batch],
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
            sizes.append(len(batch[1]))
        if first is None:
            raise ValueError("X: gave no batches; there is nothing to train on")
        self.num_rows, self.batches_per_epoch = sum(sizes), len(sizes)
        self._kind = repr((signature(first[0]), tuple(first[1].shape[1:]), self.num_rows))
        self._iterator: Iterator[Batch] | None = None
        self._start: dict[str, Tensor] = {}
        self._position = 0

    def next(self) -> Batch:
        """The next batch."""
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
        """The place in the epoch, for `torch.save`."""
        return {
            "start": dict(self._start),
            "position": -1 if self._iterator is None else self._position,
            "now": self._generators(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._iterator = None
        if state["position"] >= 0:
            self._set_generators(state["start"])
            self._begin()
            for _ in range(state["position"]):
                self.next()
        self._set_generators(state["now"])

    def fingerprint(self) -> str:
        """A short text that tells these data from others."""
        return self._kind

    def interrupted(self) -> None:
        """Call this after somebody else went through the data."""
        if getattr(self.data, "persistent_workers", False):
            self._iterator = None  # workers that stay serve one epoch at a time

    def _begin(self) -> None:
        self._start, self._position = self._generators(), 0
        self._iterator = self._batches()

    def _batches(self) -> Iterator[Batch]:
        for batch in as_batches(self.data, missing=self.missing):
            yield self.place(*batch)

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
