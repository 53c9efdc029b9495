"""Values of a model in training, kept aside."""

from __future__ import annotations

import math
from typing import Any

from lingp.runtime.tensors import Tensors

Snapshot = tuple[int, Tensors]
"""A step of the optimizer, counted from 1, and copies of all tensors after it, by name."""


class KeptSnapshots:
    """The last good state, and that of the largest evidence if it is wanted.

    Parameters
    ----------
    keep_best
        Whether it is.
    """

    def __init__(self, keep_best: bool) -> None:
        self.keep_best = keep_best
        self.good: Snapshot | None = None
        self.best: Snapshot | None = None
        self.largest = -math.inf
        self.since_largest = 0

    def accept(self, snapshot: Snapshot, evidence: float) -> None:
        """Keep a good state, of this evidence."""
        self.good = snapshot
        self.since_largest += 1
        if evidence > self.largest:
            self.largest, self.since_largest = evidence, 0
            self.best = snapshot if self.keep_best else None

    def state_dict(self) -> dict[str, Any]:
        """Everything that is kept, for `torch.save`."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        vars(self).update(state)
