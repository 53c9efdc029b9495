"""Linearised Laplace for softmax outputs, in function space, by lingp."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contenders.torch_tools import bytes_of, package_versions, set_up
from lingp.inference import FunctionSpace, TrainingSet
from lingp.likelihoods import DenseRoot
from lingp.linearization import LinearizedNetwork
from lingp.priors import Isotropic


def versions() -> dict[str, str]:
    return package_versions("torch")


def softmax_root(logits: Tensor) -> DenseRoot:
    """R = diag(√p) - p √pᵀ, so that R Rᵀ = diag(p) - p pᵀ."""
    p = torch.softmax(logits, dim=-1)
    root = p.sqrt()
    return DenseRoot(torch.diag_embed(root) - p.unsqueeze(-1) * root.unsqueeze(-2))  # (N, C, C)


class Contender:
    """Gram matrix, Cholesky factorisation, joint covariances (n x C x C) at `test`."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        network, self._x = set_up(case, data)
        self._y = torch.from_numpy(data["y"])
        self._test = torch.from_numpy(data["test"]).to(self._x.dtype)
        self._linearized = LinearizedNetwork(network, dtype=self._x.dtype)
        self._prior = Isotropic(case["precision"]).bind(self._linearized.parameter_names)

    @torch.no_grad()
    def work(self) -> Tensor:
        training = TrainingSet.collect(
            self._linearized, [(self._x, self._y, None)], keep_bytes=1 << 40, progress=False
        )
        posterior = FunctionSpace(training, self._prior, softmax_root(training.outputs))
        _, factors = self._linearized.factors(self._test)
        return posterior.marginal_covariance(factors)

    def arrays(self, outcome: Tensor) -> dict[str, Any]:
        return {"covariance": outcome.numpy()}

    def kept(self, outcome: Tensor) -> dict[str, int]:
        return {"result": bytes_of(outcome)}
