"""Inducing points in closed form against inducing points and posteriors that are trained.

Regression (kin8nm, first 2,000 training rows of split 0): the bound and the test NLL of the closed
form (`inference=Sparse`) with greedily chosen inputs, and of `InducingPointNTKernel` with the same
inputs moved by Adam. Noise and prior precision are those of the exact evidence for all.

Classification (glass, split 0): test NLL of the closed form and of `LinearizedSVGP`, with the
network's and with the prior's mean, at the precision of the sparse evidence.

    python benchmarks/inducing_points.py            # a few minutes
    python benchmarks/inducing_points.py --quick    # small sizes, made-up data
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import datasets
import gpytorch
import torch
import training
from harness.command_line import publish
from harness.table import markdown_table
from torch import Tensor, nn

import lingp
from lingp.gpytorch_models import InducingPointNTKernel, LinearizedSVGP, PriorMean, to_gpytorch
from lingp.inference.sparse.selection import choose_candidates
from lingp.likelihoods import Categorical, Gaussian

HEADER = ["", "inducing points", "bound", "test NLL", "seconds"]
Data = tuple[Tensor, Tensor, Tensor, Tensor]
Rows = list[list[str]]


class Regression(gpytorch.models.ExactGP):
    """SGPR with the prior that `LinearizedGP` has."""

    def __init__(
        self, x: Tensor, y: Tensor, noise: float, kernel: lingp.NTKernel, points: Tensor
    ) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = torch.tensor(noise, dtype=torch.float64)
        super().__init__(x, y, likelihood)
        self.mean_module = PriorMean(kernel)
        self.covar_module = InducingPointNTKernel(kernel, points, likelihood)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        mean, covariance = self.mean_module(x), self.covar_module(x)
        return gpytorch.distributions.MultivariateNormal(mean, covariance)


def regression(data: Data, steps: int, adam: int, sizes: list[int], learned: list[int]) -> Rows:
    """Lines of the table for regression."""
    x, y, x_test, y_test = data
    net = _mlp([x.shape[1], 50, 50, 1], nn.GELU)
    training.train(net, lambda f: (f.squeeze(1) - y).square().sum(), x, steps=steps, precision=0.1)
    error = float((net(x).squeeze(1) - y).square().mean().detach())
    exact, seconds = _timed(lambda: _tuned(net, Gaussian(error), x, y.unsqueeze(1)))
    noise, precision = exact.likelihood.noise.item(), exact.prior.precision.item()
    score = -exact.predict(x_test, progress=False).log_prob(y_test.unsqueeze(1)).mean().item()
    rows = [["exact", "", f"{exact.evidence().value:,.0f}", f"{score:.3f}", f"{seconds:.1f}"]]
    kernel = lingp.NTKernel.from_model(net, prior=precision)
    candidates = kernel(x[:1000]).to_dense().detach()
    for size in sizes:

        def closed(size: int = size) -> lingp.LinearizedGP:
            gp = lingp.LinearizedGP(
                net,
                Gaussian(noise),
                prior=precision,
                mean="refit",
                inference=lingp.Sparse(size, "greedy"),
            ).fit(x, y.unsqueeze(1), progress=False)
            gp.posterior(x_test[:1])
            return gp

        sparse, seconds = _timed(closed)
        score = -sparse.predict(x_test, progress=False).log_prob(y_test.unsqueeze(1)).mean().item()
        bound = sparse.evidence().value
        rows.append(["closed form", f"{size}", f"{bound:,.0f}", f"{score:.3f}", f"{seconds:.1f}"])
        if size not in learned:
            continue
        points = x[choose_candidates("greedy", candidates, 1, size).chosen]
        model = Regression(x, y, noise, kernel, points)
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)

        def loss(model: Regression = model, objective: gpytorch.Module = objective) -> Tensor:
            return -objective(model(x), y)

        moved = [model.covar_module.inducing_points]
        _, seconds = _timed(partial(_adam, moved, loss, adam))
        bound = -float(loss().detach()) * len(y)
        with torch.no_grad():
            model.eval()
            predicted = model.likelihood(model(x_test))
            normal = torch.distributions.Normal(predicted.mean, predicted.variance.sqrt())
            score = -normal.log_prob(y_test).mean().item()
        rows.append(["learned", f"{size}", f"{bound:,.0f}", f"{score:.3f}", f"{seconds:.1f}"])
    return rows


def classification(data: Data, num_classes: int, steps: int, adam: int, size: int) -> Rows:
    """Lines of the table for classification."""
    x, y, x_test, y_test = data
    net = _mlp([x.shape[1], 50, num_classes], nn.Tanh)

    def cross_entropy(f: Tensor) -> Tensor:
        return nn.functional.cross_entropy(f, y, reduction="sum")

    training.train(net, cross_entropy, x, steps=steps, precision=0.1)
    options = lingp.Sparse(size)
    tuned = _tuned(net, Categorical(), x, y, inference=options)
    precision = tuned.prior.precision.item()
    rows = []
    for mean in ("network", "refit"):

        def closed(mean: str = mean) -> float:
            gp = lingp.LinearizedGP(
                net, Categorical(), prior=precision, mean=mean, inference=options
            ).fit(x, y, progress=False)
            return -gp.predict(x_test, progress=False).log_prob(y_test).mean().item()

        score, seconds = _timed(closed)
        words = "network" if mean == "network" else "prior"
        rows.append([f"closed form, {words}", f"{size}", "", f"{score:.3f}", f"{seconds:.1f}"])
    kernel = lingp.NTKernel.from_model(net, prior=precision)
    points = x[choose_candidates("greedy", kernel(x).to_dense().detach(), num_classes, size).chosen]
    likelihood = to_gpytorch(Categorical(), num_nodes=64)
    for words, make in (("network", lingp.NetworkMean), ("prior", PriorMean)):
        model = LinearizedSVGP(kernel, points, mean=make)
        objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
        model.covar_module.prior.requires_grad_(False)
        draws = torch.Generator().manual_seed(0)

        def loss(
            model: LinearizedSVGP = model,
            objective: gpytorch.Module = objective,
            draws: torch.Generator = draws,
        ) -> Tensor:
            rows = torch.randint(len(y), (128,), generator=draws)
            return -objective(model(x[rows]), y[rows])

        trained = [p for p in model.parameters() if p.requires_grad]
        _, seconds = _timed(partial(_adam, trained, loss, adam))
        model.eval()
        with torch.no_grad():
            score = -likelihood(model(x_test)).log_prob(y_test).mean().item()
            bound = float(objective(model(x), y)) * len(y)
        rows.append(
            [f"SVGP, {words}", f"{size}", f"{bound:,.0f}", f"{score:.3f}", f"{seconds:.1f}"]
        )
    return rows


def _tuned(
    net: nn.Module,
    likelihood: lingp.likelihoods.Likelihood,
    x: Tensor,
    y: Tensor,
    **options: object,
) -> lingp.LinearizedGP:
    mean = "refit" if isinstance(likelihood, Gaussian) else "network"
    gp = lingp.LinearizedGP(net, likelihood, mean=mean, **options).fit(x, y, progress=False)
    gp.optimize_hyperparameters()
    return gp


def _mlp(sizes: list[int], activation: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1]).double()


def _adam(parameters: list[Tensor], loss: Callable[[], Tensor], steps: int) -> None:
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def _timed(work: Callable) -> tuple:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def _stored(where: Path, name: str, rows: int | None = None) -> tuple[Data, int]:
    kind = datasets.regression if name == "kin8nm" else datasets.classification
    split = kind(where, name, 0)
    dtype = torch.float64 if name == "kin8nm" else torch.long
    train, test = split.train, split.test
    x, x_test = (torch.as_tensor(part.x, dtype=torch.float64) for part in (train, test))
    y, y_test = (torch.as_tensor(part.y).to(dtype) for part in (train, test))
    return (x[:rows], y[:rows], x_test, y_test), split.num_classes


def _made_up(num_classes: int) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    y = x.sum(1).sin() + 0.1 * torch.randn(80, generator=generator, dtype=torch.float64)
    if num_classes:
        y = (y * num_classes).long() % num_classes
    return x[:60], y[:60], x[60:], y[60:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, made-up data")
    parser.add_argument("--data", help=f"the folder of data files (or {datasets.DATA_VARIABLE})")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="write the report to this file too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    if arguments.quick:
        first = regression(_made_up(0), 50, 5, [8, 16], [8])
        second = classification(_made_up(3), 3, 50, 5, 6)
    else:
        where = datasets.folder(arguments.data)
        data, _ = _stored(where, "kin8nm", 2000)
        first = regression(data, 400, 100, [50, 100, 200, 400, 800], [50, 100])
        data, num_classes = _stored(where, "glass")
        second = classification(data, num_classes, 300, 400, 20)
    report = "\n\n".join(
        [
            f"Regression, {arguments.threads} threads",
            markdown_table(HEADER, first),
            "Classification (mean of the prior: the network's, or the prior's own)",
            markdown_table(HEADER, second),
        ]
    )
    publish(report, arguments.output)


if __name__ == "__main__":
    main()
