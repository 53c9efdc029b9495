"""ELLA and VaLLA of laplace-torch: fit, latent covariances.

What is called, with M the case's ``num_inducing``; prior precision and noise are given::

    ELLA(net, likelihood, subsample_size=..., n_eigenvalues=M, ...).fit(loader)
    VaLLA(net, likelihood, "kmeans", num_inducing=M, ...).fit(loader, iterations=..., lr=...)
    .predictive_moments(x_test)

ELLA makes M features from ``subsample`` training rows, one random output each: from M rows, or the
M leading directions of more. VaLLA optimises its factor and the inducing inputs (k-means at first,
at the output of the row's label) by Adam, on minibatches; it would optimise prior precision and
noise too, which are held here, as everyone has the same. It makes the case's ``steps``, or as many
as fit in ``seconds`` (told by a few steps before the clock runs).
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch
from laplace import ELLA, VaLLA
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from contenders.torch_tools import package_versions, set_up

_ELLA_ROWS = 1000  # a batch; ELLA makes one forward-mode product per feature and batch
_VALLA_ROWS = 100
_TEST_ROWS = 256
_WARM_UP = {"rows": 64, "num_inducing": 4}
_PILOT_STEPS = 2


def versions() -> dict[str, str]:
    return package_versions("torch", "laplace-torch", "curvlinops-for-pytorch")


class Contender:
    """Latent covariances (n x C x C) of the test rows, and of rows far from the data."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, self._x = set_up(case, data)
        torch.set_default_dtype(self._x.dtype)
        self._y = torch.from_numpy(data["y"])
        self._test = torch.from_numpy(data["test_x"])
        self._far = torch.from_numpy(data["far_x"])
        self._case = case
        warm = _WARM_UP["rows"]
        self._steps = 1
        self._fitted(self._x[:warm], self._y[:warm], _WARM_UP["num_inducing"])
        if case["method"] == "valla":
            pilot = self._fitted(self._x, self._y, case["num_inducing"])
            start = time.perf_counter()
            self._train(pilot, self._x, self._y, _PILOT_STEPS, override=False)
            spent = (time.perf_counter() - start) / _PILOT_STEPS
            self._steps = max(1, min(case["steps"], int(case["seconds"] / spent)))

    def _posterior(self, num_inducing: int, num_data: int) -> ELLA | VaLLA:
        case = self._case
        options = {"prior_precision": case["precision"]}
        if case["likelihood"] == "regression":
            options["sigma_noise"] = case["noise"] ** 0.5
        if case["method"] == "ella":
            subsample = min(max(num_inducing, case["subsample"]), num_data)
            return ELLA(
                self._network,
                case["likelihood"],
                subsample_size=subsample,
                n_eigenvalues=num_inducing,
                seed=case["seed"],
                **options,
            )
        made = VaLLA(
            self._network,
            case["likelihood"],
            "kmeans",
            num_inducing=num_inducing,
            seed=case["seed"],
            **options,
        )
        for held in (made.log_prior_precision, made.log_noise_variance):
            if held is not None:
                held.requires_grad_(False)
        return made

    def _fitted(self, x: Tensor, y: Tensor, num_inducing: int) -> ELLA | VaLLA:
        posterior = self._posterior(num_inducing, len(x))
        if isinstance(posterior, VaLLA):
            self._train(posterior, x, y, self._steps)
        else:
            posterior.fit(DataLoader(TensorDataset(x, y), _ELLA_ROWS))
        return posterior

    def _train(self, posterior: VaLLA, x: Tensor, y: Tensor, steps: int, **options: Any) -> None:
        torch.manual_seed(self._case["seed"])
        loader = DataLoader(TensorDataset(x, y), _VALLA_ROWS, shuffle=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior.fit(loader, iterations=steps, lr=self._case["learning_rate"], **options)

    def work(self) -> dict[str, Any]:
        posterior = self._fitted(self._x, self._y, self._case["num_inducing"])
        return {"covariance": self._covariances(posterior, self._test), "posterior": posterior}

    def _covariances(self, posterior: ELLA | VaLLA, x: Tensor) -> Tensor:
        parts = [posterior.predictive_moments(part)[1].detach() for part in x.split(_TEST_ROWS)]
        return torch.cat(parts)

    def arrays(self, outcome: dict[str, Any]) -> dict[str, np.ndarray]:
        far = self._covariances(outcome["posterior"], self._far)
        return {
            "covariance": outcome["covariance"].numpy(),
            "far": far.numpy(),
            "rank": np.array(self._case["num_inducing"]),
            "steps": np.array(self._steps if self._case["method"] == "valla" else 0),
        }

    def kept(self, outcome: dict[str, Any]) -> dict[str, int]:
        return {}
