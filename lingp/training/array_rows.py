"""Training data in arrays."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from lingp.linearization.inputs import map_inputs
from lingp.training.batches import Batch, Rows
from lingp.training.fingerprint import digest

FULL_BATCH, BATCH_SIZE = 2048, 256  # all rows up to so many, else batches of this size


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
