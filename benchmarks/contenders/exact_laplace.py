"""Linearised Laplace for softmax outputs, in function space, by laplace-torch."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from laplace import Laplace
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from contenders.torch_tools import bytes_of, package_versions, set_up


def versions() -> dict[str, str]:
    return package_versions("torch", "laplace-torch", "backpack-for-pytorch")


class Contender:
    """`fit`, then the joint covariances (n x C x C) at `test`; all data in one batch."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, x = set_up(case, data)
        torch.set_default_dtype(x.dtype)
        self._test = torch.from_numpy(data["test"]).to(x.dtype)
        self._loader = DataLoader(TensorDataset(x, torch.from_numpy(data["y"])), len(x))
        self._options = {
            "likelihood": "classification",
            "subset_of_weights": "all",
            "hessian_structure": "gp",
            "independent_outputs": False,
            "n_subset": len(x),
            "prior_precision": case["precision"],
        }

    def work(self) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = Laplace(self._network, **self._options)
            posterior.fit(self._loader)
            _, covariance = posterior._glm_predictive_distribution(self._test)
        return covariance.detach()

    def arrays(self, outcome: Tensor) -> dict[str, Any]:
        return {"covariance": outcome.numpy()}

    def kept(self, outcome: Tensor) -> dict[str, int]:
        return {"result": bytes_of(outcome)}
