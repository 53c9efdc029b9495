"""The cases of `never_worse.py`: rows, what lies outside them, and a network trained on them.

Images and tokens are trained as their users do: AdamW on batches, a fixed number of epochs. The
MLPs take a fixed number of steps; "mlp" without weight decay, so that it overfits, and "decayed"
with one that is a prior of precision 1.

Split i of digits and MNIST has its rows in the random order of seed i; the other sets have stored
splits. Outside lie

    digits          the test images inverted, and as many images of uniform noise
    MNIST           notMNIST
    the nine sets   uniform rows from three times the range of the training inputs
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import networks
import numpy as np
import torch
from datasets import Rows
from sklearn.datasets import load_digits
from torch import nn

_NUM_OUTSIDE, _RANGES = 500, 3.0


@dataclass(frozen=True)
class Training:
    """AdamW on batches with a constant learning rate.

    Parameters
    ----------
    rate : float
        Learning rate.
    decay : float
        AdamW's decoupled weight decay.
    precision : float
        τ of a penalty ½ τ |θ|² beside the sum of -log p over the data.
    epochs, steps : int
        One of them is the length; the other one is zero.
    batch : int
        Rows per step.
    """

    rate: float
    decay: float = 0.0
    precision: float = 0.0
    epochs: int = 0
    steps: int = 0
    batch: int = 64


@dataclass(frozen=True)
class Problem:
    """One split of a case."""

    train: Rows
    valid: Rows
    test: Rows
    outside: Mapping[str, np.ndarray]
    architecture: Mapping[str, Any]
    training: Training


Case = Callable[[Path, int], Problem]  # the folder of the data, the split


def digits(architecture: Mapping[str, Any], training: Training, num_train: int) -> Case:
    """Rows of scikit-learn's digits, 8 x 8 pixels between 0 and 1."""

    def problem(where: Path, index: int) -> Problem:
        x, y = load_digits(return_X_y=True)
        random = np.random.default_rng(index)
        order = random.permutation(len(y))
        x, y = (x[order] / 16).reshape(-1, 1, 8, 8).astype(np.float32), y[order].astype(np.int64)
        train, test, valid = (
            Rows(x[part], y[part])
            for part in (slice(num_train), slice(1000, 1397), slice(1397, None))
        )
        noise = random.uniform(size=test.x.shape).astype(np.float32)
        outside = {"inverted": 1 - test.x, "noise": noise}
        return Problem(train, valid, test, outside, architecture, training)

    return problem


def mnist(architecture: Mapping[str, Any], training: Training, num_train: int) -> Case:
    """Rows of MNIST; notMNIST lies outside."""

    def problem(where: Path, index: int) -> Problem:
        parts = datasets.images(where, "mnist", num_train, 1000, 1000, seed=index)
        (letters,) = datasets.images(where, "notmnist", 1000, seed=index)
        return Problem(*parts, {"letters": letters.x}, architecture, training)

    return problem


def table(name: str, training: Training) -> Case:
    """One of the nine sets with stored splits, and 2 x 50 tanh units."""

    def problem(where: Path, index: int) -> Problem:
        split = datasets.classification(where, name, index)
        sizes = [split.train.x.shape[1], 50, 50, split.num_classes]
        architecture = {"kind": "mlp", "sizes": sizes, "activation": "tanh"}
        low, high = split.train.x.min(axis=0), split.train.x.max(axis=0)
        middle, half = (low + high) / 2, _RANGES * (high - low) / 2
        shape = (_NUM_OUTSIDE, len(middle))
        far = middle + half * np.random.default_rng(index).uniform(-1, 1, size=shape)
        return Problem(split.train, split.valid, split.test, {"far": far}, architecture, training)

    return problem


_CNN, _RESNET = {"kind": "batchnorm_cnn"}, {"kind": "resnet", "widths": [8, 16, 16], "channels": 1}
_IMAGES = Training(rate=3e-3, decay=1e-4, epochs=60, batch=50)
_SMALLER = [name for name in datasets.CLASSIFICATION if name not in ("digits", "satellite")]
_MLP = {"rate": 3e-3, "steps": 1000}

# cheap ones first
CASES: dict[str, Case] = {
    **{f"cnn-{n}": digits(_CNN, _IMAGES, n) for n in (200, 400, 1000)},
    "transformer-400": digits(
        {"kind": "row_transformer"}, Training(rate=3e-3, decay=1e-2, epochs=100, batch=50), 400
    ),
    **{
        f"{kind}-{name}": table(name, Training(**_MLP, precision=precision))
        for sets in (_SMALLER, ("digits",), ("satellite",))
        for kind, precision in (("mlp", 0.0), ("decayed", 1.0))
        for name in sets
    },
    "resnet-1000": mnist(_RESNET, Training(rate=3e-3, decay=1e-2, epochs=30), 1000),
    "lenet-8000": mnist({"kind": "lenet"}, Training(rate=2e-3, decay=1e-2, epochs=20), 8000),
}
QUICK_CASES: dict[str, Case] = {
    "cnn-40": digits(_CNN, Training(rate=3e-3, epochs=3, batch=20), 40),
    "mlp-glass": table("glass", Training(rate=1e-2, steps=30)),
}


def train(network: nn.Module, rows: Rows, training: Training) -> nn.Module:
    """The network, trained in place, in evaluation mode."""
    x, y = torch.from_numpy(rows.x).float(), torch.from_numpy(rows.y)
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(parameters, training.rate, weight_decay=training.decay)
    batches = -(-len(x) // training.batch)
    left = training.steps or training.epochs * batches
    network.train()
    while left:
        for part in torch.randperm(len(x)).split(training.batch)[:left]:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(x[part]), y[part])
            if training.precision:
                penalty = sum(p.square().sum() for p in parameters)
                loss = loss + 0.5 * training.precision * penalty / len(x)
            loss.backward()
            optimizer.step()
            left -= 1
    return network.eval()


def trained_network(problem: Problem, index: int, cache: Path) -> dict[str, np.ndarray]:
    """Weights of the trained network; read from a file of the same training, else written."""
    recipe = json.dumps([problem.architecture, asdict(problem.training), len(problem.train.y)])
    if cache.exists():
        with np.load(cache, allow_pickle=False) as file:
            if str(file["recipe"]) == recipe:
                return {name: file[name] for name in file.files if name != "recipe"}
    start = time.perf_counter()
    torch.manual_seed(index)
    network = train(networks.build(problem.architecture), problem.train, problem.training)
    made = networks.weights(network)
    print(f"{cache.stem}: trained in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    cache.parent.mkdir(parents=True, exist_ok=True)
    np.savez(cache, recipe=np.array(recipe), **made)
    return made
