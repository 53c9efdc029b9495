"""A trained classifier itself: softmax of its outputs, at temperature 1 or that of least NLL.

The temperature T > 0 of softmax(f / T) is the one of least NLL on the validation rows (Guo, Pleiss,
Sun and Weinberger, 2017, "On calibration of modern neural networks", section 4.2), between 0.1 and
100: where all validation rows are right by far, none is the least.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from contenders.torch_tools import Laps, package_versions, set_up

_TEMPERATURES = (0.1, 100.0)


def versions() -> dict[str, str]:
    return package_versions("torch", "scipy")


def best_temperature(outputs: Tensor, y: Tensor) -> float:
    """T of least NLL of softmax(f / T)."""

    def nll(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(outputs / math.exp(log_temperature), y))

    found = minimize_scalar(nll, bounds=[math.log(t) for t in _TEMPERATURES], method="bounded")
    return math.exp(found.x)


class Contender:
    """Class probabilities of test and outside rows, processor's seconds, and the temperature.

    With the case's ``scaled`` the temperature is chosen, else it is 1.
    """

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, _ = set_up(case, data)
        names = ("valid_x", "valid_y", "test_x", "outside_x")
        self._x, self._y, self._test, self._outside = (torch.from_numpy(data[k]) for k in names)
        self._scaled = case["scaled"]

    @torch.no_grad()
    def work(self) -> dict[str, Tensor]:
        lap, temperature = Laps(time.process_time), 1.0
        lap("fit")
        if self._scaled:
            temperature = best_temperature(self._network(self._x).double(), self._y)
        lap("tune")
        test = torch.softmax(self._network(self._test).double() / temperature, dim=-1)
        lap("predict")
        outside = torch.softmax(self._network(self._outside).double() / temperature, dim=-1)
        return {
            "test": test,
            "outside": outside,
            "temperature": torch.tensor(temperature),
            **lap.tensors(),
        }

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {}
