"""Leave-one-out predictive densities in closed form against N refits, for every kind of likelihood.

The work: a small network with random weights, targets drawn from a linearised model with weights
from its prior, the refitted mean. The formula takes one posterior; the reference fits the
linearised model again without each datum, to convergence, and predicts the datum. For a Gaussian
likelihood both are the same.

    python benchmarks/leave_one_out.py                      # the table
    python benchmarks/leave_one_out.py --num-data 100       # more data
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from harness.table import markdown_table
from torch import Tensor, nn

from lingp.inference import FunctionSpace, LinearizedLaplace, TrainingSet, leave_one_out
from lingp.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    Poisson,
    StudentT,
)
from lingp.linearization import LinearizedNetwork
from lingp.priors import Isotropic

# likelihood, outputs of the network, shape of one output
LIKELIHOODS: dict[str, tuple[Callable[[], Likelihood], int]] = {
    "Gaussian": (lambda: Gaussian(0.1), 1),
    "Categorical, 3 classes": (lambda: Categorical(3), 3),
    "Bernoulli": (Bernoulli, 1),
    "Poisson": (Poisson, 1),
    "Heteroscedastic": (Heteroscedastic, 2),
    "Student-t, 4 degrees of freedom": (lambda: StudentT(degrees_of_freedom=4.0, scale=0.3), 1),
}


def problem(name: str, num_data: int, seed: int = 0) -> LinearizedLaplace:
    """A linearised model with a refitted mean, and data that it could have made."""
    make, num_outputs = LIKELIHOODS[name]
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, num_outputs)).double()
    x = torch.randn(num_data, 2, generator=generator, dtype=torch.float64)
    likelihood, precision = make(), 1.0
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.7 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
        linearized = LinearizedNetwork(net, dtype=torch.float64)
        _, factors = linearized.factors(x)
        # a draw from the prior of the linearised model
        draw = torch.randn(linearized.num_parameters, 1, generator=generator, dtype=torch.float64)
        weights = linearized.weights().unsqueeze(-1)
        outputs = net(x) + factors.matmul(draw / precision**0.5 - weights).squeeze(-1)
        y = likelihood.sample(outputs, generator=generator)
    prior = Isotropic(precision).bind(linearized.parameter_names)
    training = TrainingSet.collect(linearized, [(x, y, None)], keep_bytes=1 << 30, progress=False)
    return LinearizedLaplace(training, prior, likelihood, FunctionSpace, "refit")


def refits(laplace: LinearizedLaplace) -> Tensor:
    """log p(y_n | all other data) by fitting again without each datum, (N,)."""
    whole, found = laplace.training, []
    factors = whole.factors()
    for n in range(whole.num_data):
        rest = torch.arange(whole.num_data) != n
        training = TrainingSet(
            whole.linearized,
            [],
            whole.outputs[rest],
            whole.targets[rest],
            [factors.rows(rest)],
            progress=False,
        )
        fitted = LinearizedLaplace(
            training, laplace.prior, laplace.likelihood, laplace.method, "refit"
        )
        row = factors.rows(slice(n, n + 1))
        shift = fitted.weight_shift()
        assert shift is not None
        mean = whole.outputs[n : n + 1] + row.matmul(shift.unsqueeze(-1)).squeeze(-1)
        covariance = fitted.posterior().marginal_covariance(row)
        generator = torch.Generator().manual_seed(0)
        predictive = laplace.likelihood.predictive(mean, covariance, generator=generator)
        found.append(predictive.log_prob(whole.targets[n : n + 1]))
    return torch.cat(found)


def table(num_data: int) -> str:
    """The comparison as a Markdown table."""
    rows = []
    for name in LIKELIHOODS:
        laplace = problem(name, num_data)
        with torch.no_grad():
            start = time.perf_counter()
            formula = leave_one_out(laplace).log_predictive()
            middle = time.perf_counter()
            reference = refits(laplace)
            end = time.perf_counter()
            error = (formula - reference).abs()
            fitted = laplace.training.outputs + laplace.training.matmul(
                laplace.weight_shift().unsqueeze(-1)  # type: ignore[union-attr]
            ).squeeze(-1)
            inside = laplace.likelihood.log_prob(laplace.training.targets, fitted)
        rows.append(
            [
                name,
                f"{num_data}",
                f"{inside.mean():.4f}",
                f"{reference.mean():.4f}",
                f"{formula.mean():.4f}",
                f"{(formula - reference).mean():+.1e}",
                f"{error.max():.1e}",
                f"{middle - start:.3f} / {end - middle:.2f}",
            ]
        )
    header = [
        "likelihood",
        "N",
        "mean log p at the fit",
        "N refits",
        "formula",
        "mean error",
        "largest error",
        "seconds",
    ]
    return markdown_table(header, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-data", type=int, default=40)
    torch.set_num_threads(1)
    print(table(parser.parse_args().num_data))
