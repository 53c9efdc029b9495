"""What a step of training gets: a batch, from batches without end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lingp.linearization.inputs import Inputs


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
