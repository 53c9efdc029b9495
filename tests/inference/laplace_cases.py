"""Networks, hyperparameters and the dense float64 formulas that inference is held to."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lingp.inference import FunctionSpace, LinearizedLaplace, TrainingSet, WeightSpace
from lingp.likelihoods import Gaussian, Likelihood
from lingp.linearization import LinearizedNetwork
from lingp.priors import Diagonal, Grouped, Isotropic, Layerwise, Prior, UnitWise

SPACES = {"weight": WeightSpace, "function": FunctionSpace}


def mlp(num_outputs: int, depth: int, width: int = 5) -> nn.Module:
    sizes = [3, *[width] * depth, num_outputs]
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def conv_net(num_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(2, 2, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, num_outputs),
    )


@dataclass(frozen=True)
class Case:
    """A network with training and test data; everything float64 and seeded."""

    name: str
    num_outputs: int
    depth: int  # 0: the convolutional network

    def build(
        self, num_data: int = 12, num_test: int = 4
    ) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.num_outputs + 10 * self.depth)
        with torch.random.fork_rng():
            torch.manual_seed(self.num_outputs + 10 * self.depth)
            net = mlp(self.num_outputs, self.depth) if self.depth else conv_net(self.num_outputs)
        net = net.double()
        shape = (3,) if self.depth else (1, 6, 6)
        x = torch.randn(num_data, *shape, generator=generator, dtype=torch.float64)
        x_test = torch.randn(num_test, *shape, generator=generator, dtype=torch.float64)
        noise = torch.randn(num_data, self.num_outputs, generator=generator, dtype=torch.float64)
        return net, x, net(x).detach() + 0.3 * noise, x_test


CASES = [
    *(Case(f"mlp{depth}-C{c}", c, depth) for depth in (1, 2, 3) for c in (1, 3)),
    *(Case(f"conv-C{c}", c, 0) for c in (1, 3)),
]


def hyperparameters(kind: str, num_outputs: int) -> tuple[Prior, Likelihood]:
    """Priors and likelihoods by name: one or many precisions, one or many noises."""
    layerwise, per_output = kind.split("/")
    priors: dict[str, Prior] = {
        "isotropic": Isotropic(0.7, mean=0.1),
        "layerwise": Layerwise(0.7),
        "inputs": UnitWise(0.7, "inputs"),
        "outputs": UnitWise(0.7, "outputs"),
        "diagonal": Diagonal(0.7, mean=0.1),
    }
    prior = priors[layerwise]
    noise: float | Tensor = 0.2
    if per_output == "per-output":
        noise = torch.linspace(0.1, 0.4, num_outputs, dtype=torch.float64)
    return prior, Gaussian(noise)


KINDS = ["isotropic/scalar", "layerwise/scalar", "isotropic/per-output", "layerwise/per-output"]


def make_laplace(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    prior: Prior,
    likelihood: Likelihood,
    space: str,
    mean: str = "network",
    dtype: torch.dtype = torch.float64,
    keep_bytes: int = 1 << 30,
    chunk_bytes: int = 1 << 27,
    weights: Tensor | None = None,
    sites: str = "mean",
) -> LinearizedLaplace:
    """Fit without the front door, in several batches."""
    linearized = LinearizedNetwork(net, dtype=dtype)
    prior.bind_to(linearized)
    if isinstance(prior, Layerwise | Grouped) and len(set(prior.precision.tolist())) == 1:
        # precisions that differ
        steps = torch.linspace(-0.5, 0.5, len(prior.precision), dtype=torch.float64)
        prior.initialize(raw_precision=math.log(0.7) + steps)
    pieces = [None] * len(x.split(5)) if weights is None else weights.split(5)
    batches = zip(x.split(5), y.to(dtype).split(5), pieces, strict=True)
    training = TrainingSet.collect(
        linearized, batches, keep_bytes=keep_bytes, chunk_bytes=chunk_bytes, progress=False
    )
    return LinearizedLaplace(training, prior, likelihood, SPACES[space], mean, sites)


def dense_jacobian(net: nn.Module, x: Tensor) -> Tensor:
    """J by autograd, one output at a time, (N·C x P)."""
    parameters = list(net.parameters())
    rows = []
    for value in net(x).reshape(-1):
        grads = torch.autograd.grad(value, parameters, retain_graph=True)
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    return torch.stack(rows)


@dataclass(frozen=True)
class Dense:
    """The textbook formulas, with Σ0⁻¹, Λ⁻¹ and all."""

    log_evidence: Tensor
    covariance: Tensor
    mean: Tensor


def dense_reference(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    x_test: Tensor,
    prior: Prior,
    likelihood: Gaussian,
    mean: str,
) -> Dense:
    """Weight-space formulas written down as in the books, differentiable in hyperparameters."""
    jacobian, jacobian_test = dense_jacobian(net, x), dense_jacobian(net, x_test)
    variances = prior.variances()
    if not isinstance(prior, Grouped):
        sizes = torch.tensor([p.numel() for p in net.parameters()])
        variances = variances.repeat_interleave(sizes)
    noise = likelihood.noise.expand(y.shape).reshape(-1)
    outputs, outputs_test = net(x).detach().reshape(-1), net(x_test).detach().reshape(-1)
    weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    target = y.reshape(-1)

    precision = torch.diag(1 / variances) + jacobian.mT @ (jacobian / noise.unsqueeze(-1))
    covariance = jacobian_test @ torch.linalg.solve(precision, jacobian_test.mT)
    if mean == "network":
        deviation = weights - prior.mean
        evidence = (
            -0.5 * ((target - outputs).square() / noise + (2 * math.pi * noise).log()).sum()
            - 0.5 * (deviation.square() / variances).sum()
            - 0.5 * (torch.logdet(precision) + variances.log().sum())
        )
        return Dense(evidence, covariance, outputs_test)
    # the exact Gaussian process: prior mean f* + J (μ0 - θ*), kernel J Σ0 Jᵀ
    kernel = (jacobian * variances) @ jacobian.mT
    kernel_test = (jacobian_test * variances) @ jacobian.mT
    offset = outputs + jacobian @ (prior.mean - weights)
    offset_test = outputs_test + jacobian_test @ (prior.mean - weights)
    total = kernel + torch.diag(noise)
    solved = torch.linalg.solve(total, target - offset)
    evidence = -0.5 * (
        (target - offset) @ solved + torch.logdet(total) + len(target) * math.log(2 * math.pi)
    )
    return Dense(evidence, covariance, offset_test + kernel_test @ solved)
