"""Classifiers trained with the evidence by laplace-torch: `marglik_training`.

    la, network, *_ = marglik_training(
        network, loader, "classification", hessian_structure=..., prior_structure=...,
        optimizer_kwargs={"lr": 1e-2}, n_epochs=..., marglik_frequency=..., n_hypersteps=...,
        scheduler_cls=CosineAnnealingLR, scheduler_kwargs={"T_max": steps, "eta_min": 1e-5},
    )
    la(x_test)                                       # its default link, probit; then mc, bridge

It takes the same steps, batches and learning rates as the other contenders, and 2400 steps of its
hyperparameters, evenly spread: ten at each of 240 estimates of the evidence (or of all epochs,
where there are fewer), a hundred at each of 24 for the full Hessian, whose factorisation is the
costly part. Everything else is its default: backend, learning rate of the hyperparameters, no
burn-in, the checkpoint of the best evidence at the end.

The full Hessian has one prior precision: a log determinant then needs eigenvalues once per Hessian,
as in `classify_laplace`, not a factorisation per step of the hyperparameters.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import torch
from laplace import FullLaplace, marglik_training
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from contenders import classify_laplace
from contenders.torch_tools import set_up

versions = classify_laplace.versions
_HYPERSTEPS = 2400
_LINKS: dict[str, dict[str, Any]] = {
    "probit": {},
    "mc": {"link_approx": "mc", "n_samples": 1000},
    "bridge": {"link_approx": "bridge"},
}


@contextlib.contextmanager
def _one_factorisation() -> Any:
    """FullLaplace with the log determinant and variance of the benchmark's own subclass."""
    fast = classify_laplace.OneFactorisationFull
    names = ("log_det_posterior_precision", "functional_variance")
    kept = {name: FullLaplace.__dict__[name] for name in names}
    for name in names:
        setattr(FullLaplace, name, fast.__dict__[name])
    FullLaplace._eigenvalues = FullLaplace._factor = None
    try:
        yield
    finally:
        for name in names:
            setattr(FullLaplace, name, kept[name])


class Contender:
    """Class probabilities (n x C) of the test rows, by three links and by the network alone."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._case, self._data = case, data
        _, x = set_up(case, data)
        y = torch.from_numpy(data["y"])
        if case["rows"] == "all":
            x = torch.cat([x, torch.from_numpy(data["valid_x"])])
            y = torch.cat([y, torch.from_numpy(data["valid_y"])])
        torch.set_default_dtype(x.dtype)
        self._rows = TensorDataset(x, y)
        self._test = torch.from_numpy(data["test_x"])

    def work(self) -> dict[str, Tensor]:
        network, _ = set_up(self._case, self._data)
        size = self._case["batch_size"] or len(self._rows)
        torch.manual_seed(0)
        sampler = BatchSampler(RandomSampler(self._rows), size, drop_last=False)
        loader = DataLoader(self._rows, batch_size=None, sampler=sampler)
        epochs = -(-self._case["steps"] // len(sampler))
        estimates = min(self._case["estimates"], epochs)
        with warnings.catch_warnings(), _one_factorisation():
            warnings.simplefilter("ignore")
            posterior, network, *_ = marglik_training(
                network,
                loader,
                "classification",
                hessian_structure=self._case["structure"],
                prior_structure=self._case["prior"],
                optimizer_kwargs={"lr": 1e-2},
                scheduler_cls=CosineAnnealingLR,
                scheduler_kwargs={"T_max": epochs * len(sampler), "eta_min": 1e-5},
                n_epochs=epochs,
                n_hypersteps=max(1, _HYPERSTEPS // self._case["estimates"]),
                marglik_frequency=epochs // estimates,
            )
            found = {}
            for link, options in _LINKS.items():
                # a covariance that is not positive definite stops the draws
                with contextlib.suppress(torch.linalg.LinAlgError):
                    torch.manual_seed(0)
                    parts = [posterior(part, **options) for part in self._test.split(64)]
                    found[link] = torch.cat(parts).detach()
        with torch.no_grad():
            found["network"] = torch.softmax(network(self._test), dim=-1)
        return {**found, "precision": posterior.prior_precision.detach().mean()}

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {}
