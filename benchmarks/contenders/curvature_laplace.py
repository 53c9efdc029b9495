"""Covariances and evidence of a softmax network by laplace-torch, exactly as it is shipped."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from laplace import Laplace
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from contenders.torch_tools import package_versions, set_up


def versions() -> dict[str, str]:
    return package_versions("torch", "laplace-torch", "curvlinops-for-pytorch")


class Contender:
    """Its structure "full" or "gp", all weights, all rows in one batch."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, x = set_up(case, data)
        torch.set_default_dtype(x.dtype)
        self._test = torch.from_numpy(data["test"]).to(x.dtype)
        self._loader = DataLoader(TensorDataset(x, torch.from_numpy(data["y"])), len(x))
        self._options: dict[str, Any] = {"hessian_structure": case["structure"]}
        if case["structure"] == "gp":
            self._options |= {"independent_outputs": False, "n_subset": len(x)}
        self._precision = case["precision"]

    def work(self) -> dict[str, Tensor]:
        log_precision = torch.tensor([self._precision]).log().requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = Laplace(
                self._network,
                "classification",
                subset_of_weights="all",
                prior_precision=self._precision,
                **self._options,
            )
            posterior.fit(self._loader)
            _, covariance = posterior._glm_predictive_distribution(self._test)
            evidence = posterior.log_marginal_likelihood(prior_precision=log_precision.exp())
            evidence.sum().backward()
        return {
            "covariance": covariance.detach(),
            "evidence": evidence.detach().sum(),
            "gradient": log_precision.grad.sum(),
        }

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {}
