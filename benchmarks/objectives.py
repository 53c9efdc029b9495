"""Which objective finds a good prior precision: evidence or leave-one-out, of which mean.

The work: networks of 50-50 tanh units on 150 rows of four inputs, trained far (`--decay 1e-4`: they
fit every row) or with more weight decay (`--decay 3e-3`). For each likelihood and each mean, the
test NLL at the best isotropic precision of a grid (chosen by the test rows: nobody can do better),
and at the precision that each objective picks. Noise and other parameters stay.

    python benchmarks/objectives.py --decay 1e-4
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable

import torch
from harness.table import markdown_table
from torch import Tensor, nn

from lingp.inference import FunctionSpace, LinearizedLaplace, TrainingSet, optimize
from lingp.likelihoods import (
    Bernoulli,
    Binomial,
    Categorical,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from lingp.linearization import LinearizedNetwork
from lingp.priors import Isotropic

# likelihood, outputs of the network, latent outputs from the three functions below
LIKELIHOODS: dict[str, tuple[Callable[[], Likelihood], int]] = {
    "Bernoulli": (Bernoulli, 1),
    "Categorical": (lambda: Categorical(3), 3),
    "Heteroscedastic": (Heteroscedastic, 2),
    "Gaussian": (lambda: Gaussian(0.25), 1),
    "Student-t": (lambda: StudentT(3.0, 0.3), 1),
    "Poisson": (Poisson, 1),
    "Binomial, 10 trials": (lambda: Binomial(10), 1),
    "Negative binomial": (lambda: NegativeBinomial(0.5), 1),
}
GRID = range(-4, 9, 2)  # of log precisions


@torch.no_grad()
def data(name: str, num_data: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, drawn from the likelihood at latent outputs that are known functions."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_data, 4, generator=generator, dtype=torch.float64)
    f = 2 * (2 * x[:, 0]).sin() + x[:, 1] * x[:, 2]
    make, num_outputs = LIKELIHOODS[name]
    if name == "Heteroscedastic":
        precision = (-1.4 * x[:, 3]).exp() / 0.16
        half = (0.5 * precision).expm1().log()  # softplus takes it to precision / 2
        latent = torch.stack([f * precision, half], -1)
    elif num_outputs == 3:
        latent = torch.stack([f, 2 * x[:, 3], -f * x[:, 1]], -1)
    else:
        latent = f.unsqueeze(-1) * (0.5 if name in ("Poisson", "Negative binomial") else 1.0)
    likelihood = make()
    y = likelihood.sample(latent, generator=generator)
    shape = (num_outputs,) if num_outputs > 1 else ()
    target_shape = likelihood.target_shape(shape)
    y = y.reshape(num_data, *target_shape)
    return x, likelihood.check_targets(y, shape, torch.float64)


def train(name: str, x: Tensor, y: Tensor, decay: float, steps: int, seed: int) -> nn.Module:
    """A network of maximum penalised likelihood."""
    make, num_outputs = LIKELIHOODS[name]
    likelihood = make()
    torch.manual_seed(seed)
    widths = (nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh())
    net = nn.Sequential(*widths, nn.Linear(50, num_outputs)).double()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -likelihood.log_prob(y, net(x)).mean()
        loss = loss + decay * sum(p.square().sum() for p in net.parameters())
        loss.backward()
        optimizer.step()
    return net


def rows(name: str, decay: float, steps: int, seed: int) -> list[list[str]]:
    """One row of the table for each mean."""
    x, y = data(name, 150, seed)
    x_test, y_test = data(name, 500, 1000 + seed)
    make, _ = LIKELIHOODS[name]
    linearized = LinearizedNetwork(train(name, x, y, decay, steps, seed), dtype=torch.float64)
    with torch.no_grad():
        training = TrainingSet.collect(
            linearized, [(x, y, None)], keep_bytes=1 << 30, progress=False
        )
        outputs, factors = linearized.factors(x_test)

    def model(mean: str, log_precision: float = 0.0) -> LinearizedLaplace:
        likelihood = make()
        for p in likelihood.parameters():
            p.requires_grad_(False)
        prior = Isotropic(math.exp(log_precision)).bind(linearized.parameter_names)
        return LinearizedLaplace(training, prior, likelihood, FunctionSpace, mean)  # type: ignore[arg-type]

    @torch.no_grad()
    def nll(laplace: LinearizedLaplace) -> float:
        mean, shift = outputs, laplace.weight_shift()
        if shift is not None:
            mean = mean + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)
        covariance = laplace.posterior().marginal_covariance(factors)
        method = "probit" if name == "Categorical" else None
        predictive = laplace.likelihood.predictive(mean, covariance, method)
        return -float(predictive.log_prob(y_test).mean())

    made = []
    for mean in ("network", "refit"):
        best = min((nll(model(mean, log)), log) for log in GRID)
        cells = [f"{best[0]:.3f} at {best[1]:+d}"]
        for objective in ("auto", "evidence", "leave_one_out"):
            laplace = model(mean)
            optimize(
                laplace, objective=objective, num_restarts=0, tolerance=1e-4, max_evaluations=40
            )  # type: ignore[arg-type]
            log = math.log(laplace.prior.precision.item())
            cells.append(f"{nll(laplace):.3f} at {log:+.1f}")
        made.append([name, mean, f"{seed}", *cells])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decay", type=float, default=1e-4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", choices=LIKELIHOODS, help="one likelihood")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # that an objective misleads is what the table shows
    table = [
        row
        for name in ([options.only] if options.only else LIKELIHOODS)
        for seed in range(options.seeds)
        for row in rows(name, options.decay, options.steps, seed)
    ]
    header = [
        "likelihood",
        "mean",
        "seed",
        "best of a grid",
        "default",
        "evidence",
        "leave-one-out",
    ]
    print(markdown_table(header, table))
    print(f"\nTest NLL at the log precision chosen; weight decay {options.decay:g}.")


if __name__ == "__main__":
    main()
