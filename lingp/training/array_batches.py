"""Batches from arrays."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from lingp.inference.batches import Batch
from lingp.linearization.inputs import Inputs, map_inputs
from lingp.training.fingerprint import digest

FULL_BATCH, BATCH_SIZE = 2048, 256  # all rows up to so many, else batches of this size


class ArrayBatches:
    """Batches of rows in an order that is drawn for every epoch.

    Parameters
    ----------
    inputs, targets, weights
        All rows, on the network's device; no weights: 1.
    batch_size
        By default all rows, or 256 where there are more than 2048. The last batches are made as
        large as the others, or one row less.
    generator
        Draws the orders.

    Attributes
    ----------
    num_rows, batches_per_epoch
        N, and how many batches that is.
    """

    def __init__(
        self,
        inputs: Inputs,
        targets: Tensor,
        weights: Tensor | None,
        batch_size: int | None,
        generator: torch.Generator,
    ) -> None:
        self.inputs, self.targets, self.weights = inputs, targets, weights
        self.generator, self.num_rows = generator, len(targets)
        size = batch_size or (self.num_rows if self.num_rows <= FULL_BATCH else BATCH_SIZE)
        self.batches_per_epoch = -(-self.num_rows // size)
        self._order, self._position = torch.empty(0, dtype=torch.long), self.batches_per_epoch

    def next(self) -> Batch:
        """The next batch."""
        if self.batches_per_epoch == 1:
            return self.inputs, self.targets, self.weights
        if self._position == self.batches_per_epoch:
            device = self.generator.device
            order = torch.randperm(self.num_rows, generator=self.generator, device=device)
            self._order = order.to(self.targets.device)
            self._position = 0
        # of nearly equal size: BatchNorm can't do with a single row that is left over
        rows = self._order.tensor_split(self.batches_per_epoch)[self._position]
        self._position += 1
        weights = None if self.weights is None else self.weights[rows]
        return map_inputs(itemgetter(rows), self.inputs), self.targets[rows], weights

    def interrupted(self) -> None:
        """Nothing has to be done after somebody else went through the data."""

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch, for `torch.save`."""
        return {
            "order": self._order,
            "position": self._position,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._order, self._position = state["order"].to(self.targets.device), state["position"]
        self.generator.set_state(state["generator"])

    def fingerprint(self) -> str:
        """A short text that tells these data from others."""
        weights = [] if self.weights is None else [self.weights]
        return digest(self.inputs, self.targets, *weights)
