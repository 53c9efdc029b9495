"""Noise that is larger in some places than in others, and a model that knows where.

Two networks learn the same curve: one with a single noise variance, one that gives the noise for
every input (two outputs, the natural parameters of a Gaussian). Both become Gaussian processes,
with prior and noise chosen by the marginal likelihood while they train. The table compares them on
held-out data; the picture splits their error bars into what the model does not know and what no
model could.

By default the data are generated, y = x sin x + e with sd(e) = 0.1 + |x| / 2, so that the true
noise is known. ``--data mcycle.csv`` adds the motorcycle data (Silverman 1985; two columns with a
header line, time and acceleration), judged by cross-validation.

Run it with ``python examples/heteroscedastic.py``; ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from heteroscedastic_picture import draw
from torch import Tensor, nn

import lingp
from lingp.likelihoods import Gaussian, Heteroscedastic, Likelihood

LEVEL = 0.90  # of every interval below
FOLDS = 5
MODELS: dict[str, Callable[[], Likelihood]] = {
    "one noise variance": lambda: Gaussian(noise=0.1),
    "noise by the network": Heteroscedastic,
}


@dataclass(frozen=True)
class Data:
    """Measurements, and what is known about them."""

    name: str
    x: np.ndarray
    y: np.ndarray
    x_name: str
    y_name: str
    show: tuple[float, float]  # the range of x in the picture
    true_mean: Callable[[np.ndarray], np.ndarray] | None = None
    true_std: Callable[[np.ndarray], np.ndarray] | None = None


def x_sin_x(num_data: int, seed: int) -> Data:
    """y = x sin x + e, sd(e) = 0.1 + |x| / 2, x uniform in [2.5, 12.5]."""
    random = np.random.default_rng(seed)
    x = random.uniform(2.5, 12.5, num_data)
    y = x * np.sin(x) + (0.1 + np.abs(x) / 2) * random.standard_normal(num_data)
    return Data(
        "x sin x",
        x,
        y,
        "x",
        "y",
        (0.0, 15.0),
        lambda x: x * np.sin(x),
        lambda x: 0.1 + np.abs(x) / 2,
    )


def motorcycle(path: Path) -> Data:
    """Acceleration of a head in a simulated motorcycle crash."""
    time, acceleration = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(0, 1)).T
    names = "time after impact (ms)", "acceleration (g)"
    return Data("motorcycle", time, acceleration, *names, (-5.0, 70.0))


@dataclass(frozen=True)
class Forecast:
    """Predictions in the units of the data: lower end, median, upper end of a 90 % interval.

    Far from the data the variance of a measurement is a mean over noise levels that differ by
    orders of magnitude. Quantiles say more about it than moments.
    """

    measurement: np.ndarray  # (3, N): y itself
    mean: np.ndarray  # (3, N): E[y | f], what the model does not know (epistemic)
    noise: np.ndarray  # (3, N): standard deviation of y given f (aleatoric)


class Model:
    """A trained network as a Gaussian process, with the scaling of its data."""

    def __init__(self, make: Callable[[], Likelihood], x: np.ndarray, y: np.ndarray, steps: int):
        self.center, self.spread = (x.mean(), y.mean()), (x.std(), y.std())
        X, Y = self._scaled(x, 0), self._scaled(y, 1)
        likelihood = make()
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(1, 50),
            nn.Tanh(),
            nn.Linear(50, 50),
            nn.Tanh(),
            nn.Linear(50, 2 if isinstance(likelihood, Heteroscedastic) else 1),
        )
        self.gp = train(net, likelihood, X, Y, steps)

    def _scaled(self, values: np.ndarray, axis: int) -> Tensor:
        scaled = (values - self.center[axis]) / self.spread[axis]
        return torch.as_tensor(scaled, dtype=torch.float32)[:, None]

    def log_prob(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """log p(y) of every row, in the units of the data."""
        scaled = self.gp.predict(self._scaled(x, 0)).log_prob(self._scaled(y, 1))
        return scaled.numpy() - math.log(self.spread[1])

    def forecast(self, x: np.ndarray) -> Forecast:
        """Quantiles of a measurement, of its mean and of its noise."""
        X, likelihood = self._scaled(x, 0), self.gp.likelihood
        prediction = self.gp.predict(X)
        lower, upper = prediction.interval(LEVEL)
        median, _ = prediction.interval(1e-6)
        draws = self.gp.sample(X, 500, generator=torch.Generator().manual_seed(0))  # functions
        with torch.no_grad():
            mean = likelihood.conditional_mean(draws)
            noise = likelihood.conditional_variance(draws).sqrt()
        ends = torch.tensor([(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2], dtype=mean.dtype)
        y = torch.stack([lower, median, upper]).flatten(1).numpy()
        center, spread = self.center[1], self.spread[1]
        return Forecast(
            center + spread * y,
            center + spread * mean.flatten(1).quantile(ends, dim=0).numpy(),
            spread * noise.expand_as(mean).flatten(1).quantile(ends, dim=0).numpy(),
        )


def train(net: nn.Module, likelihood: Likelihood, X: Tensor, y: Tensor, steps: int):
    """Adam on the posterior; every 300 steps the marginal likelihood sets weight decay and noise.

    Returns
    -------
    lingp.LinearizedGP
    """
    precision = 1.0
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-5)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        weights = sum(p.square().sum() for p in net.parameters())
        loss = -likelihood.log_prob(y, net(X)).sum() + 0.5 * precision * weights
        (loss / len(X)).backward()
        optimizer.step()
        schedule.step()
        if step % 300 == 0 or step == steps:
            gp = lingp.LinearizedGP(net.eval(), likelihood, prior=precision)
            gp.fit(X, y, progress=False).optimize_hyperparameters()
            precision = gp.prior.precision.item()
            net.train()
    net.eval()
    return gp


def held_out(data: Data, steps: int, seed: int) -> dict[str, np.ndarray]:
    """Negative log likelihood of held-out rows for each model, (n,) each."""
    if data.true_mean is not None:  # as many fresh rows as one likes
        fresh = x_sin_x(1000, seed + 1)
        return {
            name: -Model(make, data.x, data.y, steps).log_prob(fresh.x, fresh.y)
            for name, make in MODELS.items()
        }
    fold = np.random.default_rng(seed).permutation(len(data.x)) % FOLDS
    found: dict[str, np.ndarray] = {}
    for name, make in MODELS.items():
        nll = np.empty(len(data.x))
        for k in range(FOLDS):
            model = Model(make, data.x[fold != k], data.y[fold != k], steps)
            nll[fold == k] = -model.log_prob(data.x[fold == k], data.y[fold == k])
        found[name] = nll
    return found


def main() -> None:
    """Train, compare, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("heteroscedastic.png"))
    parser.add_argument("--data", type=Path, help="motorcycle data: a file of two columns")
    parser.add_argument("--num-data", type=int, default=200, help="generated rows")
    parser.add_argument("--seed", type=int, default=0, help="of generated rows and folds")
    parser.add_argument("--steps", type=int, default=2400, help="of training")
    options = parser.parse_args()
    torch.set_num_threads(1)  # matrices are small

    sets = [x_sin_x(options.num_data, options.seed)]
    if options.data is not None:
        sets.append(motorcycle(options.data))
    models = []
    print(f"{'mean negative log likelihood, held out':<40}{'NLL':>8}{'± s.e.':>8}")
    for data in sets:
        nll = held_out(data, options.steps, options.seed)
        for name, values in nll.items():
            error = values.std(ddof=1) / math.sqrt(len(values))
            print(f"{data.name + ', ' + name:<40}{values.mean():8.3f}{error:8.3f}")
        gain = nll["one noise variance"] - nll["noise by the network"]
        error = gain.std(ddof=1) / math.sqrt(len(gain))
        print(f"{data.name + ', gain':<40}{gain.mean():8.3f}{error:8.3f}")
        models.append(
            {name: Model(make, data.x, data.y, options.steps) for name, make in MODELS.items()}
        )
    draw(options.output, sets, models)
    print(f"Picture: {options.output}")


if __name__ == "__main__":
    main()
