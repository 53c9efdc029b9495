"""lingp's sparse and exact posteriors: fit, latent covariances."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import lingp
from contenders.torch_tools import package_versions, set_up

_WARM_UP = {"rows": 64, "num_inducing": 4}


def versions() -> dict[str, str]:
    return package_versions("torch", "gpytorch", "linear_operator")


class Contender:
    """Latent covariances (n x C x C) of the test rows, and of rows far from the data.

    The case's ``select`` is a rule of `lingp.Sparse`, or None for the exact posterior. The exact
    one says the precision and noise it used; with ``tune`` in the case it sets them first, by the
    evidence, before the clock runs.
    """

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, self._x = set_up(case, data)
        self._y = torch.from_numpy(data["y"])
        self._test = torch.from_numpy(data["test_x"])
        self._far = torch.from_numpy(data["far_x"])
        self._case = dict(case)
        if case.get("tune"):
            gp = self._fitted(self._x, self._y, self._case)
            gp.optimize_hyperparameters()
            self._case["precision"] = gp.prior.precision.item()
            self._case["noise"] = self._noise(gp)
        warm = _WARM_UP["rows"]
        self._fitted(self._x[:warm], self._y[:warm], _WARM_UP).predict(self._x[:warm])

    def _inference(self, num_inducing: int) -> Any:
        case = self._case
        if case["select"] is None:
            return "auto"
        return lingp.Sparse(
            num_inducing,
            case["select"],
            points=case["points"],
            complement=case.get("complement", "fitted"),
            generator=torch.Generator().manual_seed(case["seed"]),
        )

    def _fitted(self, x: Tensor, y: Tensor, case: dict[str, Any]) -> lingp.LinearizedGP:
        likelihood: Any = "categorical"
        if self._case["likelihood"] == "regression":
            likelihood = lingp.likelihoods.Gaussian(noise=self._case["noise"])
        gp = lingp.LinearizedGP(
            self._network,
            likelihood,
            prior=self._case["precision"],
            inference=self._inference(case.get("num_inducing", 0)),
            sites="mean",
        )
        return gp.fit(x, y, progress=False)

    def _noise(self, gp: lingp.LinearizedGP) -> float:
        if self._case["likelihood"] != "regression":
            return float("nan")
        return gp.likelihood.noise.item()

    def work(self) -> dict[str, Any]:
        gp = self._fitted(self._x, self._y, self._case)
        prediction = gp.predict(self._test, progress=False)
        return {
            "gp": gp,
            "mean": prediction.latent_mean,
            "covariance": prediction.latent_covariance,
        }

    def arrays(self, outcome: dict[str, Any]) -> dict[str, np.ndarray]:
        gp, covariance = outcome["gp"], outcome["covariance"]
        far = gp.predict(self._far, progress=False).latent_covariance
        outputs = covariance.shape[-1] if self._case.get("points") == "inputs" else 1
        found = {
            "mean": outcome["mean"],
            "covariance": covariance,
            "far": far,
            "rank": torch.tensor(self._case.get("num_inducing", 0) * outputs),
            "precision": gp.prior.precision,
        }
        if self._case["likelihood"] == "regression":
            found["noise"] = gp.likelihood.noise
        return {name: value.detach().numpy() for name, value in found.items()}

    def kept(self, outcome: dict[str, Any]) -> dict[str, int]:
        return {}
