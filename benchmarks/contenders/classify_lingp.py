"""Classification by lingp: fit, tune, predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import lingp
from contenders.torch_tools import package_versions, set_up


def versions() -> dict[str, str]:
    return package_versions("torch", "gpytorch", "linear_operator")


class Contender:
    """Class probabilities (n x C) of the test rows, and the tuned precision.

    The case's ``tuning``: "default" sets no option anywhere; "validation" tunes on the validation
    rows and does not absorb them, so that every contender has learned from the same rows.
    """

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, self._x = set_up(case, data)
        self._y = torch.from_numpy(data["y"])
        self._valid = torch.from_numpy(data["valid_x"]), torch.from_numpy(data["valid_y"])
        self._test = torch.from_numpy(data["test_x"])
        self._tuning = case["tuning"]

    def work(self) -> dict[str, Tensor]:
        gp = lingp.LinearizedGP(self._network, "categorical").fit(self._x, self._y, progress=False)
        if self._tuning == "validation":
            gp.optimize_hyperparameters(validation=self._valid, absorb=False)
        else:
            gp.optimize_hyperparameters()
        return {
            "default": gp.predict(self._test, progress=False).probs,
            "precision": gp.prior.precision.detach().mean(),
        }

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {}
