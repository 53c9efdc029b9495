"""From a trained network to a Gaussian process, on real data.

A small network learns the drag of sailing yachts from towing-tank measurements. Then it becomes a
Gaussian process: its Jacobians give the kernel, the marginal likelihood chooses prior and noise,
and predictions have error bars. A table and a picture show what the error bars are worth on
measurements that were held out. Takes well under a minute on two cores.

Run it with ``python examples/quickstart.py``; ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from quickstart_picture import draw
from torch import Tensor, nn

import lingp
from lingp.data import load_yacht

LEVEL = 0.90  # of every interval below


def train_network(X: Tensor, y: Tensor, *, seed: int, steps: int) -> nn.Module:
    """Train a network the usual way; nothing in here knows of Gaussian processes."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(X.shape[1], 50), nn.GELU(), nn.Linear(50, 50), nn.GELU(), nn.Linear(50, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-5)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(X), y).backward()
        optimizer.step()
        schedule.step()
    return net.eval()


@dataclass(frozen=True)
class Scaling:
    """Standardises with the mean and standard deviation of the training data."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Scaling:
        """Take them from some data."""
        return cls(values.mean(axis=0), values.std(axis=0))

    def apply(self, values: np.ndarray) -> Tensor:
        """Standardise, as the network likes its numbers."""
        return torch.as_tensor((values - self.mean) / self.std, dtype=torch.float32)


@dataclass(frozen=True)
class Forecast:
    """Predictions in the units of the data, all of shape (N,)."""

    mean: np.ndarray
    epistemic_std: np.ndarray  # what the model does not know
    total_std: np.ndarray  # the same and the noise of a measurement

    def half_width(self, std: np.ndarray) -> np.ndarray:
        """Half the width of the interval at `LEVEL`."""
        return statistics.NormalDist().inv_cdf((1 + LEVEL) / 2) * std

    def contains(self, y: np.ndarray) -> np.ndarray:
        """Which measurements lie inside their interval."""
        return np.abs(y - self.mean) <= self.half_width(self.total_std)

    def table_row(self, name: str, y: np.ndarray) -> str:
        """RMSE, mean negative log likelihood, share of measurements inside their interval."""
        error, variance = y - self.mean, self.total_std**2
        rmse = math.sqrt(np.mean(error**2))
        nll = 0.5 * np.mean(np.log(2 * math.pi * variance) + error**2 / variance)
        return f"{name:<32}{rmse:8.3f}{nll:8.2f}{100 * self.contains(y).mean():12.0f} %"


def forecast(gp: lingp.LinearizedGP, X: Tensor, scale: Scaling) -> Forecast:
    """Predict, and undo the standardisation of the target."""
    prediction = gp.predict(X)
    mean, epistemic, total = (
        values.detach().numpy().ravel()
        for values in (prediction.mean, prediction.epistemic_variance, prediction.variance)
    )
    return Forecast(
        mean=scale.mean + scale.std * mean,
        epistemic_std=scale.std * np.sqrt(epistemic),
        total_std=scale.std * np.sqrt(total),
    )


def hyperparameters(gp: lingp.LinearizedGP) -> str:
    """What the marginal likelihood may change."""
    precision, noise = gp.prior.precision.item(), gp.likelihood.noise.item()
    return f"prior precision {precision:.3g}, noise variance {noise:.3g} (standardised)"


class Stopwatch:
    """Seconds that the parts of a program take, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds.items())


def main() -> None:
    """Tell the whole story, in the order in which it happens."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("quickstart.png"), help="the picture")
    parser.add_argument(
        "--split",
        type=int,
        default=0,
        choices=range(20),
        metavar="0..19",
        help="which standard split",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the network's first weights")
    parser.add_argument("--steps", type=int, default=2400, help="of training")
    options = parser.parse_args()
    timed = Stopwatch()
    # One thread is enough for matrices this small; more would wait for each other on busy cores.
    torch.set_num_threads(1)

    # Real data, standardised with the statistics of the training set.
    yacht = load_yacht()
    X_train, y_train, X_test, y_test = yacht.split(options.split)
    scale_X, scale_y = Scaling.of(X_train), Scaling.of(y_train)
    X, y = scale_X.apply(X_train), scale_y.apply(y_train)[:, None]

    # A network as anybody would train it.
    with timed("training"):
        net = train_network(X, y, seed=options.seed, steps=options.steps)
    with torch.no_grad():
        training_error = nn.functional.mse_loss(net(X), y).item()

    # Its neural tangent kernel. Any GPyTorch model can use it.
    kernel = lingp.NTKernel.from_model(net)
    with timed("kernel"):
        gram = kernel(X).to_dense()

    # The Gaussian process: first with a prior and a noise that were only guessed, then with those
    # that the marginal likelihood prefers.
    gp = lingp.LinearizedGP(
        net,
        likelihood=lingp.likelihoods.Gaussian(noise=training_error),
        prior=lingp.priors.Isotropic(precision=1.0),
    )
    with timed("fit"):
        gp.fit(X, y)
        evidence_before = gp.log_marginal_likelihood().item()
    guess = hyperparameters(gp)
    with timed("tuning"):
        gp.optimize_hyperparameters()
        evidence_after = gp.log_marginal_likelihood().item()

    # Predictions around the network's own output, and around the mean of the Gaussian process.
    with timed("predictions"):
        ours = forecast(gp, scale_X.apply(X_test), scale_y)
        refit_gp = lingp.LinearizedGP(net, gp.likelihood, prior=gp.prior, mean="refit").fit(X, y)
        refit = forecast(refit_gp, scale_X.apply(X_test), scale_y)
    noise_std = np.sqrt(ours.total_std**2 - ours.epistemic_std**2)
    network_alone = Forecast(ours.mean, np.zeros_like(noise_std), noise_std)

    num_weights = sum(parameter.numel() for parameter in net.parameters())
    print(f"Yacht hydrodynamics, split {options.split}: {len(y)} measurements to learn from")
    print(f"Network with {num_weights:,} weights; its kernel is {' x '.join(map(str, gram.shape))}")
    print()
    print(f"{len(y_test)} held-out measurements            RMSE     NLL   inside 90 %")
    print(network_alone.table_row("network, tuned noise only (MAP)", y_test))
    print(ours.table_row('lingp, mean="network"', y_test))
    print(refit.table_row('lingp, mean="refit"', y_test))
    print("(NLL: mean negative log likelihood in the units of the data; lower is better)")
    print()
    print('Log marginal likelihood (mean="network"), by which prior and noise were chosen:')
    print(f"  before {evidence_before:7.1f}   {guess}")
    print(f"  after  {evidence_after:7.1f}   {hyperparameters(gp)}")
    print(f"Inference: {gp.inference_choice}")
    print()
    print(f"Seconds: {timed}")

    draw(
        options.output,
        yacht,
        test=yacht.test_index[options.split],
        predict=lambda inputs: forecast(gp, scale_X.apply(inputs), scale_y),
    )
    print(f"Picture: {options.output}")


if __name__ == "__main__":
    main()
