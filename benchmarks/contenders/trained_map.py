"""Classifiers by maximum a posteriori, the weight decay chosen on the validation rows.

A network is trained for every precision of a grid, from the same initial weights; the one with the
smallest validation NLL is kept. "retrained" is trained once more, with that precision, on training
and validation rows together.
"""

from __future__ import annotations

from typing import Any

import networks
import numpy as np
import torch
from torch import Tensor, nn
from training import train_in_batches

from contenders.torch_tools import package_versions, set_up

GRID = np.logspace(-2, 2, 10)


def versions() -> dict[str, str]:
    return package_versions("torch")


class Contender:
    """Class probabilities (n x C) of the test rows, the precision, and the network's weights."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._case, self._data = case, data
        _, self._x = set_up(case, data)
        self._y = torch.from_numpy(data["y"])
        self._valid = torch.from_numpy(data["valid_x"]), torch.from_numpy(data["valid_y"])
        self._test = torch.from_numpy(data["test_x"])
        self._grid = GRID[:: case.get("grid_stride", 1)]

    def work(self) -> dict[str, Any]:
        valid_x, valid_y = self._valid
        trained = [self._trained(self._x, self._y, precision) for precision in self._grid]
        with torch.no_grad():
            losses = [float(nn.functional.cross_entropy(n(valid_x), valid_y)) for n in trained]
        # a network that has diverged is never the best
        best = int(np.nanargmin(losses))
        x, y = torch.cat([self._x, valid_x]), torch.cat([self._y, valid_y])
        again = self._trained(x, y, self._grid[best])
        with torch.no_grad():
            found = {
                "default": torch.softmax(trained[best](self._test), dim=-1),
                "retrained": torch.softmax(again(self._test), dim=-1),
            }
        weights = networks.weights(trained[best])
        return {**found, "precision": torch.tensor(self._grid[best]), "weights": weights}

    def _trained(self, x: Tensor, y: Tensor, precision: float) -> nn.Module:
        network, _ = set_up(self._case, self._data)
        size = self._case["batch_size"] or len(x)

        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            return nn.functional.cross_entropy(logits, labels, reduction="sum")

        return train_in_batches(
            network,
            loss,
            x,
            y,
            epochs=-(-self._case["steps"] // -(-len(x) // size)),
            precision=float(precision),
            batch_size=size,
            learning_rate=(1e-2, 1e-5),
        )

    def arrays(self, outcome: dict[str, Any]) -> dict[str, np.ndarray]:
        found = {name: v.numpy() for name, v in outcome.items() if name != "weights"}
        return {**found, **outcome["weights"]}

    def kept(self, outcome: dict[str, Any]) -> dict[str, int]:
        return {}
