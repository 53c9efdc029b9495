"""Covariances and evidence of a softmax network by lingp."""

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
    """Exact inference in the space the case names."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, self._x = set_up(case, data)
        self._y, self._test = torch.from_numpy(data["y"]), torch.from_numpy(data["test"])
        self._precision, self._space = case["precision"], case["space"]

    def work(self) -> dict[str, Tensor]:
        prior = lingp.priors.Isotropic(precision=self._precision)
        gp = lingp.LinearizedGP(
            self._network, "categorical", prior=prior, inference=self._space, sites="mean"
        )
        gp.fit(self._x, self._y, progress=False)
        joint = gp.posterior(self._test).covariance_matrix  # (n C, n C), rows n C + c
        num, outputs = len(self._test), len(joint) // len(self._test)
        rows = torch.arange(num)
        blocks = joint.unflatten(0, (num, outputs)).unflatten(-1, (num, outputs))

        (raw,) = gp.prior.parameters()
        evidence = gp.log_marginal_likelihood()
        (by_raw,) = torch.autograd.grad(evidence, raw)
        (precision_by_raw,) = torch.autograd.grad(gp.prior.precision.sum(), raw)
        gradient = by_raw / precision_by_raw * gp.prior.precision  # in log precision
        return {
            "covariance": blocks[rows, :, rows, :].detach(),
            "evidence": evidence.detach(),
            "gradient": gradient.detach().sum(),
        }

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {}
