"""Regression by laplace-torch, as its regression example does it.

    net: Adam, learning rate 1e-2, mean squared error, 1000 epochs of one batch, no weight decay
    la = Laplace(net, "regression")          # its default: last layer, kron
    la.fit(loader)
    1000 steps of Adam (0.1) of log prior precision and log noise on la.log_marginal_likelihood
    mean, variance = la(x_test);  noise variance la.sigma_noise²

(`optimize_prior_precision` alone would leave the noise at 1.) With the case's ``subset`` "all" the
posterior is that of all weights. With ``online`` the network is trained by

    marglik_training(net, loader, "regression", optimizer_kwargs={"lr": 1e-2}, n_epochs=1000)

with its defaults otherwise (kron, a prior precision for each layer, ten hyperparameter steps each
epoch, the checkpoint of the best evidence).
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import networks
import numpy as np
import torch
from laplace import Laplace, marglik_training
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from contenders import classify_laplace

versions = classify_laplace.versions


class Contender:
    """Predictive mean and standard deviation, noise included, of the test rows."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        torch.set_num_threads(case["threads"])
        torch.set_default_dtype(torch.float64)
        self._case = case
        rows = TensorDataset(torch.from_numpy(data["x"]), torch.from_numpy(data["y"])[:, None])
        self._loader = DataLoader(rows, len(rows))
        self._test = torch.from_numpy(data["test_x"])

    def work(self) -> dict[str, Tensor]:
        start = time.process_time()
        torch.manual_seed(self._case["seed"])
        network = networks.build(self._case["architecture"]).double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = self._online(network) if self._case["online"] else self._after(network)
            mean, variance = posterior(self._test)
        noise = torch.as_tensor(posterior.sigma_noise).detach().square()
        std = (variance.detach().flatten() + noise).sqrt()
        seconds = torch.tensor(time.process_time() - start)
        return {"mean": mean.detach().flatten(), "std": std, "seconds": seconds}

    def _online(self, network: nn.Module) -> Any:
        posterior, *_ = marglik_training(
            network,
            self._loader,
            "regression",
            optimizer_kwargs={"lr": 1e-2},
            n_epochs=self._case["epochs"],
        )
        return posterior

    def _after(self, network: nn.Module) -> Any:
        optimizer, loss = torch.optim.Adam(network.parameters(), lr=1e-2), nn.MSELoss()
        for _ in range(self._case["epochs"]):
            for x, y in self._loader:
                optimizer.zero_grad()
                loss(network(x), y).backward()
                optimizer.step()
        posterior = Laplace(network, "regression", subset_of_weights=self._case["subset"])
        posterior.fit(self._loader)
        prior, sigma = (torch.ones(1, requires_grad=True) for _ in range(2))
        tuner = torch.optim.Adam([prior, sigma], lr=1e-1)
        for _ in range(self._case["epochs"]):
            tuner.zero_grad()
            (-posterior.log_marginal_likelihood(prior.exp(), sigma.exp())).backward()
            tuner.step()
        return posterior

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {}
