"""The network and the data of `iterative.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import datasets
import networks
import numpy as np
import torch
from torch import Tensor, nn
from training import train_in_batches

import lingp
from lingp.inference import FunctionSpace, LinearizedLaplace, TrainingSet

NOISE = 0.05  # in training, whatever it turns out to be
_BATCH = 1024  # rows that factors are made for


@dataclass(frozen=True)
class Task:
    """The network, the data, and the variance of the noise: that of residuals at test rows."""

    network: nn.Module
    x: Tensor
    y: Tensor
    test: Tensor
    noise: float

    def laplace(self, rows: int, precision: float) -> LinearizedLaplace:
        """Of the first rows, with function space for a start."""
        linearized = lingp.LinearizedNetwork(self.network)
        x, y = (t[:rows].split(_BATCH) for t in (self.x, self.y))
        batches = [(inputs, targets, None) for inputs, targets in zip(x, y, strict=True)]
        training = TrainingSet.collect(linearized, batches, keep_bytes=sys.maxsize, progress=False)
        prior = lingp.priors.Isotropic(precision).bind(linearized.parameter_names)
        likelihood = lingp.likelihoods.Gaussian(noise=self.noise)
        return LinearizedLaplace(training, prior, likelihood, FunctionSpace)


def make_task(where: Path, width: int, epochs: int, cache: Path | None) -> Task:
    """The data in random order, and a network with two hidden layers, cached or trained.

    Parameters
    ----------
    where
        Folder of the data.
    width
        Of the hidden layers.
    epochs
        Of training.
    cache
        Folder of trained weights; None: nothing is kept.
    """
    split = datasets.regression(where, "kin40k", 0)
    order = np.random.default_rng(0).permutation(len(split.train.y))
    x, y = (torch.from_numpy(a[order]) for a in (split.train.x, split.train.y))
    sizes = [x.shape[1], width, width, 1]
    torch.manual_seed(0)
    network = networks.build({"kind": "mlp", "sizes": sizes})
    name = f"kin40k-{width}-{epochs}.npz"
    kept = None if cache is None else cache.expanduser() / name
    weights = trained_weights(network, x, y, epochs, kept)
    networks.load_weights(network, weights, torch.float64)
    test, targets = (torch.from_numpy(a) for a in (split.test.x, split.test.y))
    with torch.no_grad():
        noise = float((network(test).squeeze(-1) - targets).square().mean())
    return Task(network, x, y.unsqueeze(-1), test, noise)


def trained_weights(
    network: nn.Module, x: Tensor, y: Tensor, epochs: int, kept: Path | None
) -> dict[str, np.ndarray]:
    """Those in the file, or after so many epochs of Adam in float32, and written to it."""
    if kept is not None and kept.exists():
        with np.load(kept) as file:
            return dict(file)

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return (f.squeeze(-1) - y).square().sum() / (2 * NOISE)

    with stage("training"):
        train_in_batches(network, loss, x.float(), y.float(), epochs=epochs, precision=1.0)
    weights = networks.weights(network)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **weights)
    return weights


def set_precision(laplace: LinearizedLaplace, precision: float) -> None:
    """Exchange the prior; the kernel for unit variances is kept."""
    names = laplace.training.linearized.parameter_names
    laplace.prior = lingp.priors.Isotropic(precision).bind(names)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Say on standard error what takes how long."""
    start = time.perf_counter()
    yield
    print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
