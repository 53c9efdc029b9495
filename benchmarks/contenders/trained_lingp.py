"""Classifiers trained with the evidence by lingp, no validation rows asked for."""

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
    """Class probabilities (n x C) of the test rows by the posterior and by the network alone.

    The case's ``rows``: "train" or "all", which joins the validation rows to them.
    """

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, self._x = set_up(case, data)
        self._y = torch.from_numpy(data["y"])
        if case["rows"] == "all":
            self._x = torch.cat([self._x, torch.from_numpy(data["valid_x"])])
            self._y = torch.cat([self._y, torch.from_numpy(data["valid_y"])])
        self._test = torch.from_numpy(data["test_x"])
        self._steps, self._batch = case["steps"], case["batch_size"]

    def work(self) -> dict[str, Tensor]:
        found = lingp.train_with_evidence(
            self._network,
            self._x,
            self._y,
            likelihood="categorical",
            steps=self._steps,
            batch_size=self._batch or None,
            progress=False,
        )
        with torch.no_grad():
            alone = torch.softmax(found.net(self._test), dim=-1)
        return {
            "default": found.gp.predict(self._test, progress=False).probs,
            "network": alone,
            "precision": found.prior.precision.detach().mean(),
            "evidence": torch.tensor(found.history[-1].evidence / len(self._y)),
        }

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {}
