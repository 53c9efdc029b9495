"""Batches without end, whose place can be kept and found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lingp.operators.batches import Batch


@dataclass
class EndlessBatches:
    """Batches of one epoch after the other.

    It is used where the global generators are private, see `PrivateRandomness`.

    Attributes
    ----------
    epoch
        Gives the batches of an epoch.
    generators
        What an epoch draws from besides torch's global generator, by name.
    num_rows, batches_per_epoch
        N, of an epoch, and how many batches that is.
    fingerprint
        Gives a short text that tells these data from others.
    begins_anew
        Whether an epoch that somebody else interrupts can't go on.
    """

    epoch: Callable[[], Iterator[Batch]]
    generators: Mapping[str, torch.Generator]
    num_rows: int
    batches_per_epoch: int
    fingerprint: Callable[[], str]
    begins_anew: bool = False
    _iterator: Iterator[Batch] | None = None
    _start: dict[str, Tensor] = field(default_factory=dict)  # states when the epoch began
    _position: int = 0

    def next(self) -> Batch:
        """The next batch."""
        batch = None if self._iterator is None else next(self._iterator, None)
        if batch is None:
            batch = next(self._begin())
        self._position += 1
        return batch

    def interrupted(self) -> None:
        """Call this after somebody else went through the data."""
        if self.begins_anew:
            self._iterator = None

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch, for `torch.save`."""
        position = -1 if self._iterator is None else self._position
        return {"start": dict(self._start), "position": position, "now": self._states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._iterator = None
        if state["position"] >= 0:
            self._set_states(state["start"])
            self._begin()
            for _ in range(state["position"]):
                self.next()
        self._set_states(state["now"])

    def _begin(self) -> Iterator[Batch]:
        self._start, self._position = self._states(), 0
        self._iterator = self.epoch()
        return self._iterator

    def _states(self) -> dict[str, Tensor]:
        own = {name: g.get_state() for name, g in self.generators.items()}
        return {"global": torch.get_rng_state(), **own}

    def _set_states(self, states: dict[str, Tensor]) -> None:
        torch.set_rng_state(states["global"])
        for name, generator in self.generators.items():
            generator.set_state(states[name])
