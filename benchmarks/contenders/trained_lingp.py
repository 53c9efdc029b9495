"""Classifiers trained with the evidence by lingp.

On all rows, training and validation; and on the training rows, for a like-for-like comparison. Two
further predictions make use of the validation rows: "valid" multiplies the prior variances of the
network of the training rows by the factor that predicts the validation rows best, and then adds
those rows to the data; "valid retrained" takes that factor for the network of all rows. Every
factor tried takes a posterior of its own: the case's ``validate`` says whether to search it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lingp
from contenders.torch_tools import package_versions, set_up


def versions() -> dict[str, str]:
    return package_versions("torch", "gpytorch", "linear_operator")


class Contender:
    """Class probabilities (n x C) of the test rows, and the seconds that each kind took."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, x = set_up(case, data)
        y = torch.from_numpy(data["y"])
        self._train = x, y
        self._valid = torch.from_numpy(data["valid_x"]), torch.from_numpy(data["valid_y"])
        self._all = tuple(torch.cat(pair) for pair in zip(self._train, self._valid, strict=True))
        self._test = torch.from_numpy(data["test_x"])
        self._validate = case["validate"]
        self._options = {"steps": case["steps"], "updates": case["updates"]}
        if case["batch_size"]:
            self._options["batch_size"] = case["batch_size"]

    def work(self) -> dict[str, Tensor]:
        everything, seconds = _timed(lambda: self._trained(*self._all))
        found = {
            "default": self._posterior(everything),
            "network": self._alone(everything),
            "precision": everything.prior.precision.detach(),
            "evidence": torch.tensor(everything.history[-1].evidence / len(self._all[1])),
            "seconds": torch.tensor(seconds),
        }
        part, seconds_of_part = _timed(lambda: self._trained(*self._train))
        found |= {
            "train": self._posterior(part),
            "train network": self._alone(part),
            "seconds train": torch.tensor(seconds_of_part),
            "precision train": part.prior.precision.detach().clone(),
        }
        if not self._validate:
            return found
        tuned, more = _timed(lambda: part.gp.optimize_hyperparameters(validation=self._valid))
        found |= {
            "valid": self._posterior(part),
            "seconds valid": torch.tensor(seconds_of_part + more),
            "precision valid": part.gp.prior.precision.detach(),
        }
        everything.gp.prior.precision = (
            everything.gp.prior.precision.detach() / (tuned.scales["prior variances"])
        )
        return found | {
            "valid retrained": self._posterior(everything),
            "seconds valid retrained": torch.tensor(seconds + seconds_of_part + more),
            "precision valid retrained": everything.gp.prior.precision.detach(),
        }

    def _trained(self, x: Tensor, y: Tensor) -> lingp.training.EvidenceTraining:
        return lingp.train_with_evidence(
            self._network, x, y, likelihood="categorical", progress=False, **self._options
        )

    def _posterior(self, found: lingp.training.EvidenceTraining) -> Tensor:
        return found.gp.predict(self._test, progress=False).probs

    @torch.no_grad()
    def _alone(self, found: lingp.training.EvidenceTraining) -> Tensor:
        return torch.softmax(found.net(self._test), dim=-1)

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {}


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    made = work()
    return made, time.perf_counter() - start
