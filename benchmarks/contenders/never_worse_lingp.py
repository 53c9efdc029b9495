"""A trained classifier by lingp: fit, tune in one of three ways, predict."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch

import lingp
from contenders.torch_tools import Laps, package_versions, set_up

_WORDS = 12


def versions() -> dict[str, str]:
    return package_versions("torch", "gpytorch", "linear_operator")


def first_words(raised: list[warnings.WarningMessage]) -> list[str]:
    """How each different warning begins."""
    texts = (f"{w.category.__name__}: {w.message}".split() for w in raised)
    return list(dict.fromkeys(" ".join(words[:_WORDS]) for words in texts))


class Contender:
    """Class probabilities of test and outside rows, processor's seconds, hyperparameters, warnings.

    The case's ``arguments`` are keywords of `LinearizedGP`; its ``tuning`` is "none", "evidence"
    or "validation", `optimize_hyperparameters` without or with the validation rows, and no other
    option set: the latter learns from these rows afterwards too.
    """

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, self._x = set_up(case, data)
        self._y = torch.from_numpy(data["y"])
        self._valid = torch.from_numpy(data["valid_x"]), torch.from_numpy(data["valid_y"])
        self._test, self._outside = (torch.from_numpy(data[k]) for k in ("test_x", "outside_x"))
        self._arguments, self._tuning = case["arguments"], case["tuning"]

    def work(self) -> dict[str, np.ndarray]:
        lap = Laps(time.process_time)
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            gp = lingp.LinearizedGP(self._network, "categorical", **self._arguments)
            gp.fit(self._x, self._y, progress=False)
            lap("fit")
            if self._tuning == "evidence":
                gp.optimize_hyperparameters()
            elif self._tuning == "validation":
                gp.optimize_hyperparameters(validation=self._valid)
            lap("tune")
            test = gp.predict(self._test, progress=False).probs
            lap("predict")
            outside = gp.predict(self._outside, progress=False).probs
        return {
            "test": test.numpy(),
            "outside": outside.numpy(),
            "precision": gp.prior.precision.detach().mean().numpy(),
            "mean_scale": np.array(float(getattr(gp, "mean_scale", 1.0))),
            "inference": np.array([gp.inference_choice.space]),
            "warnings": np.array(first_words(raised), dtype=np.str_),
            **{name: value.numpy() for name, value in lap.tensors().items()},
        }

    def arrays(self, outcome: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return outcome

    def kept(self, outcome: dict[str, np.ndarray]) -> dict[str, int]:
        return {}
