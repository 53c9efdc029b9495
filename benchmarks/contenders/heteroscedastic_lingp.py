"""Networks trained with the evidence online, and their predictives, by lingp."""

from __future__ import annotations

import math
from typing import Any

import networks
import numpy as np
import torch
from torch import Tensor, nn
from training import train

import lingp
from contenders.torch_tools import package_versions
from lingp.likelihoods import Gaussian, Heteroscedastic, Likelihood

UPDATES = 8
METHODS = ("mixture", "natural", "delta")
_START = 1.0  # the prior precision before the first update

Data = tuple[Tensor, Tensor]


def versions() -> dict[str, str]:
    return package_versions("torch", "gpytorch", "linear_operator")


def network_for(num_inputs: int, hidden: int, outputs: int, seed: int) -> nn.Module:
    """GELU layers of 50 units, float64."""
    torch.manual_seed(seed)
    return networks.build({"kind": "mlp", "sizes": [num_inputs, *[50] * hidden, outputs]}).double()


def posterior(
    network: nn.Module, likelihood: Likelihood, precision: float, data: Data, mean: str = "network"
) -> lingp.LinearizedGP:
    """The GP of a network in its present state."""
    gp = lingp.LinearizedGP(network, likelihood, prior=precision, mean=mean)
    return gp.fit(*data, progress=False)


def tuned(network: nn.Module, likelihood: Likelihood, data: Data, steps: int) -> float:
    """Train, updating prior precision and likelihood by the evidence; the last precision."""
    precision = _START

    def update() -> float:
        nonlocal precision
        gp = posterior(network, likelihood, precision, data)
        gp.optimize_hyperparameters()
        precision = gp.prior.precision.item()
        return precision

    def loss(f: Tensor) -> Tensor:
        return -likelihood.log_prob(data[1], f).sum()

    options = {"update_every": steps // UPDATES, "update": update}
    train(network, loss, data[0], steps=steps, precision=_START, **options)
    return update()


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root mean squared error."""
    return (mean.reshape(y.shape) - y).square().mean().sqrt().item()


class Contender:
    """Mean test log-likelihoods and errors in the units of the data."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        torch.set_num_threads(case["threads"])
        self._case = case
        self._data = torch.from_numpy(data["x"]), torch.from_numpy(data["y"]).unsqueeze(-1)
        self._test = (
            torch.from_numpy(data["test_x"]),
            torch.from_numpy(data["test_y"]).unsqueeze(-1),
        )

    def work(self) -> dict[str, float]:
        hetero = self._scores(Heteroscedastic(), 2, METHODS)
        homo = self._scores(Gaussian(noise=0.1), 1, (None,))
        return hetero | {f"homoscedastic {name}": value for name, value in homo.items()}

    def _scores(
        self, likelihood: Likelihood, outputs: int, methods: tuple[str | None, ...]
    ) -> dict[str, float]:
        (x, y), case = self._test, self._case
        network = network_for(x.shape[1], case["hidden"], outputs, case["seed"])
        precision = tuned(network, likelihood, self._data, case["steps"])
        unit = math.log(case["target_std"])  # log densities per unit of the data
        with torch.no_grad():
            alone = likelihood.log_prob(y, network(x)).mean().item()
        found = {"precision": precision, "MAP": alone - unit}
        for mean in ("network", "refit"):
            gp = posterior(network, likelihood, precision, self._data, mean)
            suffix = "" if mean == "network" else " refit"
            for method in methods:
                prediction = gp.predict(x, method=method, progress=False)
                name = f"{method or 'exact'}{suffix}"
                found[name] = prediction.log_prob(y).mean().item() - unit
                # The median: where the noise is not known, a mixture's mean is that of its tails.
                median, _ = prediction.interval(1e-6)
                found[f"{name} rmse"] = rmse(median, y) * case["target_std"]
        return found

    def arrays(self, outcome: dict[str, float]) -> dict[str, np.ndarray]:
        return {name: np.array(value) for name, value in outcome.items()}

    def kept(self, outcome: dict[str, float]) -> dict[str, int]:
        return {}
