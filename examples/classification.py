"""Class probabilities that know where the data end.

A network learns two moons and becomes a Gaussian process. The picture shows the probability and the
entropy of its predictions beside those of the network alone, which is as sure far away as it is
among the data. What is printed measures this on circles around the data.

How far the probabilities move to 1/2 is decided by the network. Outputs of a GELU network grow
without end, and so do their error bars: the probability levels off, short of being sure. A network
of sines has bounded outputs whose Jacobian grows: far away, the probability is 1/2.

The data are scikit-learn's `make_moons`. ``--data banana.npz`` adds another set: a file with arrays
``X`` (N x 2) and ``y`` of labels 0 and 1.

Run it with ``python examples/classification.py``; ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from classification_picture import draw
from sklearn.datasets import make_moons
from torch import Tensor, nn

import lingp

RADII = (1.0, 3.0, 10.0, 100.0)  # of circles around the data, in units of the farthest datum
WEIGHT_DECAY = 0.1


class Sine(nn.Module):
    """sin x, elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        """(N x units) to the same."""
        return torch.sin(x)


ACTIVATIONS: dict[str, type[nn.Module]] = {"GELU": nn.GELU, "sine": Sine}


@dataclass(frozen=True)
class Data:
    """Inputs (N x 2), standardised, and labels 0 or 1."""

    name: str
    X: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, name: str, X: np.ndarray, y: np.ndarray, num_train: int, seed: int) -> Data:
        """Some rows of a data set, standardised with their own statistics."""
        rows = np.random.default_rng(seed).permutation(len(y))[:num_train]
        X, y = X[rows], y[rows].astype(np.int64)
        return cls(name, (X - X.mean(axis=0)) / X.std(axis=0), y)


def train_network(X: Tensor, y: Tensor, activation: str, *, seed: int, steps: int) -> nn.Module:
    """Train a network the usual way, with a little weight decay."""
    torch.manual_seed(seed)
    act = ACTIVATIONS[activation]
    net = nn.Sequential(nn.Linear(2, 50), act(), nn.Linear(50, 50), act(), nn.Linear(50, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-5)
    for _ in range(steps):
        optimizer.zero_grad()
        decay = WEIGHT_DECAY / 2 * sum(p.square().sum() for p in net.parameters())
        loss = nn.functional.cross_entropy(net(X), y, reduction="sum") + decay
        (loss / len(X)).backward()
        optimizer.step()
        schedule.step()
    return net.eval()


class Classifier:
    """The network alone and as a Gaussian process: probabilities of class 1, (n,)."""

    def __init__(self, data: Data, activation: str, *, seed: int, steps: int):
        X, y = torch.as_tensor(data.X, dtype=torch.float32), torch.as_tensor(data.y)
        self.title = f"{data.name}, {activation}"
        self.net = train_network(X, y, activation, seed=seed, steps=steps)
        self.gp = lingp.LinearizedGP(self.net, "categorical").fit(X, y)
        self.gp.optimize_hyperparameters()

    def network(self, X: np.ndarray) -> np.ndarray:
        """Softmax of the network's outputs."""
        with torch.no_grad():
            logits = self.net(torch.as_tensor(X, dtype=torch.float32))
        return torch.softmax(logits.double(), dim=-1)[:, 1].numpy()

    def lingp(self, X: np.ndarray) -> np.ndarray:
        """The Gaussian process's predictive."""
        prediction = self.gp.predict(torch.as_tensor(X, dtype=torch.float32))
        return prediction.probs[:, 1].numpy()


def circle(data: Data, radius: float) -> np.ndarray:
    """Points around the data, (360 x 2); radius 1 goes through the farthest datum."""
    angle = np.linspace(0, 2 * np.pi, 360, endpoint=False)
    farthest = np.linalg.norm(data.X, axis=1).max()
    return radius * farthest * np.column_stack([np.cos(angle), np.sin(angle)])


def main() -> None:
    """Train, measure, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("classification.png"))
    parser.add_argument("--data", type=Path, help="another set: .npz with X (N x 2) and y")
    parser.add_argument("--num-data", type=int, default=200, help="rows of each set")
    parser.add_argument("--seed", type=int, default=0, help="of data and first weights")
    parser.add_argument("--steps", type=int, default=1500, help="of training")
    parser.add_argument("--pixels", type=int, default=120, help="of a map, across")
    options = parser.parse_args()
    torch.set_num_threads(1)  # matrices are small

    X, y = make_moons(options.num_data, noise=0.2, random_state=options.seed)
    sets = [Data.of("two moons", X, y, options.num_data, options.seed)]
    if options.data is not None:
        with np.load(options.data, allow_pickle=False) as file:
            X, y = file["X"], file["y"]
        name = options.data.stem.removeprefix("cls_")
        sets.append(Data.of(name, X, y, options.num_data, options.seed))

    shown = [
        (data, Classifier(data, activation, seed=options.seed, steps=options.steps))
        for data in sets
        for activation in ACTIVATIONS
    ]
    print("Largest and mean |p - 1/2| on a circle around the data (1/2: sure, 0: no idea)")
    print(
        f"{'network':<18}{'radius':>8}{'network: max':>14}{'mean':>8}{'lingp: max':>13}{'mean':>8}"
    )
    for data, classifier in shown:
        for radius in RADII:
            points = circle(data, radius)
            network, ours = (abs(p(points) - 0.5) for p in (classifier.network, classifier.lingp))
            print(
                f"{classifier.title:<18}{radius:>8g}{network.max():>14.3f}{network.mean():>8.3f}"
                f"{ours.max():>13.3f}{ours.mean():>8.3f}"
            )
    draw(options.output, shown, options.pixels)
    print(f"Picture: {options.output}")


if __name__ == "__main__":
    main()
