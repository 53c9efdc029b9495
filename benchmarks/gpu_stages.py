"""The stages of `gpu.py`: what is computed, timed, counted and checked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import networks
import torch
from autodiff import Autodiff, curvature, dense_posterior
from harness import table
from torch import Tensor, nn

import lingp
from lingp.inference import FunctionSpace, LinearizedLaplace, TrainingSet, available_memory
from lingp.inference.sparse.projection import Projection
from lingp.models.latents import Latents
from lingp.operators import gram

NOISE = 0.1
_BATCH = 256
_SHARE = 0.8  # of free memory


@dataclass
class Part:
    """A piece of a stage's work: seconds, and flops counted by formula."""

    name: str
    seconds: float
    flops: float


@dataclass
class Check:
    """A number that a right result keeps below a bound."""

    name: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.value <= self.bound  # False for nan


@dataclass
class Record:
    """What a stage has to say."""

    what: str = ""
    dtype: str = "float64"
    parts: list[Part] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    peak: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> Record:
        loaded = json.loads(text)
        parts = [Part(**part) for part in loaded.pop("parts")]
        checks = [Check(**check) for check in loaded.pop("checks")]
        return cls(**loaded, parts=parts, checks=checks)

    @contextmanager
    def timed(self, name: str, flops: float, device: torch.device) -> Iterator[None]:
        """Time a piece of work, from an idle device to an idle device."""
        wait(device)
        start = time.perf_counter()
        yield
        wait(device)
        self.parts.append(Part(name, time.perf_counter() - start, flops))


def wait(device: torch.device) -> None:
    """Until the device has nothing to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_network(architecture: dict[str, Any], device: torch.device) -> nn.Module:
    """With random weights, the same everywhere."""
    torch.manual_seed(0)
    return networks.build(architecture).double().to(device)


def normal(device: torch.device, seed: int, *shape: int) -> Tensor:
    """Standard normal numbers in float64."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float64)


def pair_flops(network: nn.Module, outputs: int) -> float:
    """Of the block K(x, x') of two inputs: 2 (I + C² O) for a linear layer, 2 C² P for others.

    The last layer's share is 2 I: its derivatives in the outputs are the same for all inputs.
    """
    linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    other = sum(
        p.numel()
        for layer in network.modules()
        if isinstance(layer, nn.Conv2d)
        for p in layer.parameters()
    )
    inner = sum(layer.in_features for layer in linear)
    inner += outputs**2 * sum(layer.out_features for layer in linear[:-1])
    return 2.0 * (inner + outputs**2 * other)


@dataclass(frozen=True)
class Problem:
    """A network with random data."""

    network: nn.Module
    x: Tensor
    likelihood: str
    precision: float = 1.0

    def laplace(self, *, keep_factors: bool) -> LinearizedLaplace:
        """Outputs, and Jacobian factors if they are to be kept; function space for a start."""
        linearized = lingp.LinearizedNetwork(self.network)
        likelihood = lingp.likelihoods.as_likelihood(
            lingp.likelihoods.Gaussian(NOISE) if self.likelihood == "gaussian" else "categorical"
        )
        batches = []
        for x in self.x.split(_BATCH):
            f = linearized(x).detach()
            y = f if self.likelihood == "gaussian" else f.argmax(-1)
            batches.append((x, likelihood.check_targets(y, tuple(f.shape[1:]), f.dtype), None))
        training = TrainingSet.collect(
            linearized, batches, keep_bytes=sys.maxsize if keep_factors else 0, progress=False
        )
        prior = lingp.priors.Isotropic(self.precision).bind(linearized.parameter_names)
        return LinearizedLaplace(training, prior, likelihood, FunctionSpace, sites="network")

    def memory(self) -> float:
        """Bytes that may be used."""
        return _SHARE * available_memory(self.x.device)


@torch.no_grad()
def dense_check(
    problem: Problem, laplace: LinearizedLaplace, test: Tensor, inducing: int | None = None
) -> Check:
    """Covariances and log determinant of a small problem against dense matrices."""
    network = problem.network
    jacobians = [
        Autodiff(network, x).jacobian() / problem.precision**0.5 for x in (problem.x, test)
    ]
    curved = curvature(problem.likelihood, network(problem.x), NOISE)
    covariance, determinant = dense_posterior(*jacobians, curved, inducing)
    posterior = laplace.posterior()
    _, factors = laplace.training.linearized.factors(test)
    found = posterior.marginal_covariance(factors)
    n, c = found.shape[:2]
    blocks = torch.einsum("ncnd->ncd", covariance.view(n, c, n, c))
    allowed = 5 * posterior.log_determinant_error()
    off = max(0.0, float((posterior.log_determinant() - determinant).abs()) - allowed)
    errors = [off / float(determinant), float((found - blocks).abs().max() / blocks.abs().max())]
    return Check("dense", max(errors), 1e-6)


@torch.no_grad()
def full_size_check(problem: Problem, laplace: LinearizedLaplace, bound: float) -> Check:
    """|Fᵀ Λ (w - F u) - u| / |Fᵀ Λ w| for u = (I + Fᵀ Λ F)⁻¹ Fᵀ Λ w; prior precision 1."""
    posterior, training = laplace.posterior(), laplace.training
    products = Autodiff(problem.network, problem.x)
    curved = curvature(problem.likelihood, training.outputs, NOISE)
    direction = normal(problem.x.device, 7, training.num_parameters) / training.num_parameters**0.5
    w = products.matmul(direction) + normal(problem.x.device, 8, *training.outputs.shape)
    features = posterior.features

    def pulled(values: Tensor) -> Tensor:
        v = products.t_matmul((curved @ values.unsqueeze(-1)).squeeze(-1)).unsqueeze(-1)
        return features.t_whitened(v) if isinstance(features, Projection) else v

    u = posterior.solve(posterior.root.t_apply(w.unsqueeze(-1)).squeeze(-1)).unsqueeze(-1)
    left = pulled(w - products.matmul(features.weights(u).squeeze(-1))) - u
    return Check("full size", float(left.norm() / pulled(w).norm()), bound)


def rates(device: torch.device, quick: bool) -> Record:
    """The card's own rates: a square matrix product, and a copy."""
    size = 256 if quick else 8192
    record = Record("rates")
    for dtype in (torch.float64, torch.float32):
        a, b = (normal(device, seed, size, size).to(dtype) for seed in (0, 1))
        record.facts[str(dtype).removeprefix("torch.")] = (
            2 * size**3 / _median(lambda a=a, b=b: a @ b, device)
        )
    source = torch.empty((1 << 20) if quick else (1 << 29), dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    record.facts["copy"] = 2 * source.nbytes / _median(lambda: target.copy_(source), device)
    cuda = device.type == "cuda"
    record.facts["device"] = torch.cuda.get_device_name(device) if cuda else table.processor()
    record.facts["cuda"] = torch.version.cuda if cuda else None
    return record


def _median(work: Callable[[], object], device: torch.device) -> float:
    """Seconds, of five after one that warms up."""
    times = []
    for _ in range(6):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[2]


def exact(device: torch.device, quick: bool) -> Record:
    """Function space: kernel, Cholesky, predictions."""
    network = make_network({"kind": "mlp", "sizes": [6, 8, 8, 3]}, device)
    small = Problem(network, normal(device, 1, 20, 6), "gaussian", precision=2.0)
    laplace = small.laplace(keep_factors=True)
    checks = [dense_check(small, laplace, normal(device, 2, 5, 6))]

    sizes, n, tests = ([6, 8, 8, 3], 60, 10) if quick else ([64, 512, 512, 10], 4000, 500)
    network, outputs = make_network({"kind": "mlp", "sizes": sizes}, device), sizes[-1]
    problem = Problem(network, normal(device, 3, n, sizes[0]), "gaussian")
    record = Record(f"MLP {'-'.join(map(str, sizes))}, N·C = {n * outputs}", checks=checks)
    record.facts["parameters"] = sum(p.numel() for p in network.parameters())
    rows, pairs = float(n * outputs), pair_flops(network, outputs)
    with torch.no_grad(), measured(record, device):
        with record.timed("fit", 0.0, device):
            laplace = problem.laplace(keep_factors=True)
        with record.timed("kernel", n**2 * pairs / 2, device):
            laplace.training.unit_gram()
        with record.timed("Cholesky, evidence", rows**3 / 3, device):
            float(laplace.log_marginal_likelihood())
        test = normal(device, 4, tests, sizes[0])
        flops = n * tests * pairs + rows**2 * tests * outputs
        with record.timed(f"{tests} predictions", flops, device):
            Latents(laplace, problem.memory()).marginals(test, False)
    record.checks.append(full_size_check(problem, laplace, 1e-6))
    return record


def float32(device: torch.device, quick: bool) -> Record:
    """The kernel in float32."""
    sizes, n = ([6, 8, 8, 3], 60) if quick else ([64, 512, 512, 10], 4000)
    network, outputs = make_network({"kind": "mlp", "sizes": sizes}, device), sizes[-1]
    x = normal(device, 3, n, sizes[0])
    record = Record(f"MLP {'-'.join(map(str, sizes))}, N·C = {n * outputs}", "float32")
    record.facts["parameters"] = sum(p.numel() for p in network.parameters())
    linearized = lingp.LinearizedNetwork(network, dtype=torch.float32)
    with torch.no_grad(), measured(record, device):
        gram(linearized.factors(x[:20].float())[1])  # warm-up
        with record.timed("fit", 0.0, device):
            _, factors = linearized.factors(x.float())
        with record.timed("kernel", n**2 * pair_flops(network, outputs) / 2, device):
            kernel = gram(factors)
    some = torch.arange(0, n, max(1, n // 4), device=device)
    picked = Autodiff(network, x[some]).jacobian()
    reference = torch.cat(
        [picked @ Autodiff(network, part).jacobian().mT for part in x.split(100)], 1
    )
    rows = (some.unsqueeze(-1) * outputs + torch.arange(outputs, device=device)).flatten()
    error = (kernel[rows] - reference).abs().max() / reference.abs().max()
    record.checks = [Check("full size", float(error), 1e-4)]
    return record


def sparse(device: torch.device, quick: bool) -> Record:
    """Inducing points: choice, one pass over the data, predictions."""
    network = make_network({"kind": "lenet", "outputs": 3}, device)
    small = Problem(network, normal(device, 1, 12, 1, 28, 28), "categorical", precision=2.0)
    laplace = small.laplace(keep_factors=False)
    inference = lingp.Sparse(inducing=small.x[:4])
    laplace.method = inference.bind(laplace.training, laplace.prior, small.memory())
    checks = [dense_check(small, laplace, normal(device, 2, 3, 1, 28, 28), inducing=4 * 3)]

    n, m, tests, outputs = (40, 4, 5, 3) if quick else (60_000, 256, 2000, 10)
    network = make_network({"kind": "lenet", "outputs": outputs}, device)
    problem = Problem(network, normal(device, 3, n, 1, 28, 28), "categorical")
    record = Record(f"LeNet, N = {n}, C = {outputs}, M = {m}", checks=checks)
    record.facts["parameters"] = sum(p.numel() for p in network.parameters())
    size, pairs = float(m * outputs), pair_flops(network, outputs)
    with torch.no_grad(), measured(record, device):
        with record.timed("fit", 0.0, device):
            laplace = problem.laplace(keep_factors=False)
        inference = lingp.Sparse(m)
        with record.timed("inducing points", 0.0, device):
            laplace.method = inference.bind(laplace.training, laplace.prior, problem.memory())
        weighted = n * (outputs - 1.0)
        flops = n * m * pairs + n * outputs * size**2 + weighted * size**2 + size**3 / 3
        with record.timed("pass over the data, evidence", flops, device):
            float(laplace.log_marginal_likelihood())
        test = normal(device, 4, tests, 1, 28, 28)
        flops = tests * (m * pairs + 2 * outputs * size**2)
        with record.timed(f"{tests} predictions", flops, device):
            Latents(laplace, problem.memory()).marginals(test, False)
    record.checks.append(full_size_check(problem, laplace, 1e-6))
    return record


def iterative(device: torch.device, quick: bool) -> Record:
    """Conjugate gradients: kernel, variances, evidence."""
    network = make_network({"kind": "mlp", "sizes": [6, 8, 8, 3]}, device)
    small = Problem(network, normal(device, 1, 30, 6), "gaussian", precision=2.0)
    laplace = small.laplace(keep_factors=True)
    options = lingp.Iterative(4, tolerance=1e-9, generator=torch.Generator().manual_seed(0))
    laplace.method = options.bind(laplace.training, laplace.prior, small.memory())
    checks = [dense_check(small, laplace, normal(device, 2, 5, 6))]

    layers, n, m, tests = ([6, 8, 8, 3], 60, 6, 4)
    if not quick:
        layers, n, m, tests = [128, 2304, 2304, 2304, 10], 5000, 100, 100
    network, outputs = make_network({"kind": "mlp", "sizes": layers}, device), layers[-1]
    problem = Problem(network, normal(device, 3, n, layers[0]), "gaussian")
    record = Record(f"MLP {'-'.join(map(str, layers))}, N·C = {n * outputs}", checks=checks)
    record.facts["parameters"] = sum(p.numel() for p in network.parameters())
    rows, size, pairs = float(n * outputs), float(m * outputs), pair_flops(network, outputs)
    with torch.no_grad(), measured(record, device):
        with record.timed("fit", 0.0, device):
            laplace = problem.laplace(keep_factors=True)
        options = lingp.Iterative(m, generator=torch.Generator().manual_seed(0))
        with record.timed("inducing points", 0.0, device):
            laplace.method = options.bind(laplace.training, laplace.prior, problem.memory())
        posterior, training = laplace.posterior(), laplace.training
        flops = n * m * pairs + 2 * rows * size**2
        with record.timed("preconditioner", flops, device):
            _ = posterior.preconditioner
        with record.timed("kernel", n**2 * pairs / 2, device):
            training.unit_gram()
        _, factors = training.linearized.factors(normal(device, 4, tests, layers[0]))
        with record.timed(f"variances of {tests * outputs} outputs", 0.0, device):
            posterior.marginal_covariance(factors)
        certificate, way = posterior.certificate, laplace.method.product.way
        # of all columns until the last is done: those that are done before take no part
        product = 2 * rows**2 if way == "dense" else 4.0 * n * training.num_parameters
        step = tests * outputs * (product + 4 * rows * size)
        record.parts[-1].flops = certificate.iterations * step
        with record.timed("evidence, 16 probes", 0.0, device):
            float(laplace.log_marginal_likelihood())
    record.facts["iterations"] = certificate.iterations
    record.facts["standard error"] = 0.5 * posterior.log_determinant_error()
    record.facts["products"] = way
    record.checks.append(Check("residual", certificate.residual, 1e-4))
    record.checks.append(full_size_check(problem, laplace, 1e-3))
    return record


STAGES: dict[str, Callable[[torch.device, bool], Record]] = {
    "exact": exact,
    "float32": float32,
    "sparse": sparse,
    "iterative": iterative,
}


@contextmanager
def measured(record: Record, device: torch.device) -> Iterator[None]:
    """The largest amount of the card's memory that is allocated."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    yield
    if device.type == "cuda":
        record.peak = torch.cuda.max_memory_allocated(device)
