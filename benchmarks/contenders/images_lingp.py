"""Images by lingp's sparse posterior: fit, tune, predict."""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lingp
from contenders.torch_tools import package_versions, set_up


def versions() -> dict[str, str]:
    return package_versions("torch", "gpytorch", "linear_operator")


class Contender:
    """Class probabilities of test and other images, seconds of each step, and peak memory.

    `Sparse` with the case's ``num_inducing`` inputs is asked for; no other option is set.
    """

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, self._x = set_up(case, data)
        self._y = torch.from_numpy(data["y"])
        self._test, self._outside = (torch.from_numpy(data[k]) for k in ("test_x", "outside_x"))
        self._size = case["num_inducing"]

    def work(self) -> dict[str, Any]:
        seconds = {}
        clock = time.perf_counter()

        def lap(step: str) -> None:
            nonlocal clock
            now = time.perf_counter()
            seconds[step], clock = now - clock, now

        sparse = lingp.Sparse(self._size)
        gp = lingp.LinearizedGP(self._network, "categorical", inference=sparse).fit(
            self._x, self._y, progress=False
        )
        lap("fit")
        gp.optimize_hyperparameters()
        lap("tune")
        prediction = gp.predict(self._test, progress=False)
        lap("predict")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outside = gp.predict(self._outside, progress=False)
        lap("outside")
        return {
            "test": prediction.probs,
            "outside": outside.probs,
            "covariance": prediction.latent_covariance,
            "precision": gp.prior.precision.mean(),
            "peak": torch.tensor(peak),
            **{f"seconds {step}": torch.tensor(value) for step, value in seconds.items()},
        }

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Any]) -> dict[str, int]:
        return {}
