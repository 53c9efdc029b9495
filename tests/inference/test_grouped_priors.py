"""Priors with one precision per unit or per weight: every method gives the dense formulas."""

from __future__ import annotations

import copy

import pytest
import torch
from laplace_cases import CASES, dense_reference, hyperparameters, make_laplace
from torch import nn

from lingp.inference import FunctionSpace, RoundingWarning, WeightSpace, leave_one_out
from lingp.inference.iterative import Iterative
from lingp.inference.sparse import BoundSparse
from lingp.inference.sparse.inducing import points_at

KINDS = ["inputs/scalar", "outputs/per-output", "diagonal/scalar"]
MEANS = ["network", "refit"]


class Fallback(nn.Module):
    """A bare parameter that enters by a function without a rule, and one stored inputs first."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(4, 3))
        self.matrix = nn.Parameter(torch.randn(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(-torch.cdist(x, self.centres)) @ self.matrix


def embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Tanh(), nn.Linear(6, 2))


def build(name: str, num_data: int = 12):
    """Network, inputs, targets, test inputs and C."""
    if name in ("mlp", "conv"):
        case = CASES[3] if name == "mlp" else CASES[7]
        return (*case.build(num_data), case.num_outputs)
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = (Fallback() if name == "fallback" else embedding()).double()
    if name == "fallback":
        x = torch.randn(num_data + 4, 3, generator=generator, dtype=torch.float64)
    else:
        x = torch.randint(0, 5, (num_data + 4, 2), generator=generator)
    y = net(x).detach() + 0.3 * torch.randn(len(x), 2, generator=generator, dtype=torch.float64)
    return net, x[:-4], y[:-4], x[-4:], 2


NETWORKS = ["mlp", "conv", "embedding", "fallback"]


def close(actual, expected, rtol=1e-8):
    """Relative to the largest entry: small covariances are differences of large numbers."""
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=rtol * scale)


def with_method(laplace, method, x):
    if method == "sparse":
        points = points_at(laplace.training.linearized, x.to(x.dtype))
        laplace.method = BoundSparse(points, 0)
    elif method == "iterative":
        options = Iterative(4, tolerance=1e-10, generator=torch.Generator().manual_seed(0))
        laplace.method = options.bind(laplace.training, laplace.prior, 1e9)
    else:
        laplace.method = {"weight": WeightSpace, "function": FunctionSpace}[method]
    return laplace


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "method", "mean"),
    [
        (name, method, mean)
        for name in NETWORKS
        for method in ("weight", "function", "sparse")
        for mean in (MEANS if name == "mlp" else MEANS[:1] if method == "weight" else MEANS[1:])
    ],
)
def test_evidence_gradients_and_covariances(name, method, kind, mean):
    net, x, y, x_test, num_outputs = build(name)
    prior, likelihood = hyperparameters(kind, num_outputs)
    laplace = with_method(make_laplace(net, x, y, prior, likelihood, "weight", mean), method, x)
    dense = dense_reference(net, x, y, x_test, prior, likelihood, mean)
    parameters = [*prior.parameters(), *likelihood.parameters()]
    evidence = laplace.log_marginal_likelihood()
    close(evidence, dense.log_evidence)
    gradients = torch.autograd.grad(evidence, parameters)
    wanted = torch.autograd.grad(dense.log_evidence, parameters)
    for got, expected in zip(gradients, wanted, strict=True):
        close(got, expected)
    factors = laplace.training.linearized.factors(x_test)[1]
    covariance = dense.covariance.detach()
    close(laplace.posterior().covariance(factors), covariance)
    blocks = laplace.posterior().marginal_covariance(factors)
    shape = (4, num_outputs, 4, num_outputs)
    close(blocks, torch.einsum("ncnd->ncd", covariance.view(shape)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_iterative(name, kind):
    net, x, y, x_test, num_outputs = build(name)
    prior, likelihood = hyperparameters(kind, num_outputs)
    laplace = make_laplace(net, x, y, prior, likelihood, "weight", "refit")
    laplace = with_method(laplace, "iterative", x)
    dense = dense_reference(net, x, y, x_test, prior, likelihood, "refit")
    factors = laplace.training.linearized.factors(x_test)[1]
    close(laplace.posterior().covariance(factors), dense.covariance.detach())
    outputs = laplace.training.linearized(x_test)
    shift = laplace.weight_shift()
    close(
        (outputs + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)).flatten(), dense.mean.detach()
    )
    posterior = laplace.posterior()
    exact = with_method(laplace, "function", x).posterior().log_determinant()
    error = abs(float(posterior.log_determinant() - exact))
    assert error <= 5 * posterior.log_determinant_error() + 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_leave_one_out(kind):
    """Its gradients in weight space are those in function space, and differences of values."""
    net, x, y, _, num_outputs = build("mlp")
    slopes = []
    for space in ("weight", "function"):
        prior, likelihood = hyperparameters(kind, num_outputs)
        laplace = make_laplace(net, x, y, prior, likelihood, space, "refit")
        value = leave_one_out(laplace).total()
        slopes.append(torch.autograd.grad(value, prior.raw_precision)[0])
    close(slopes[0], slopes[1])
    direction = torch.linspace(-1, 1, len(slopes[0]), dtype=torch.float64)
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            prior.raw_precision.add_(step * direction)
            values.append(float(leave_one_out(laplace).total()))
            prior.raw_precision.sub_(step * direction)
    difference = (values[0] - values[1]) / 2e-5
    assert float(slopes[1] @ direction) == pytest.approx(difference, rel=1e-6)


def test_past_the_rounding_limit():
    """L from a QR of Φᵀ: the same evidence and gradients in weight and function space."""
    net, x, y, _, num_outputs = build("mlp")
    found = []
    for space in ("weight", "function"):
        prior, likelihood = hyperparameters("diagonal/scalar", num_outputs)
        laplace = make_laplace(net, x, y, prior, likelihood, space)
        prior.precision = prior.precision.detach() * 1e-10
        with pytest.warns(RoundingWarning):
            value = laplace.log_marginal_likelihood()
        found.append((value, torch.autograd.grad(value, prior.raw_precision)[0]))
    close(found[0][0], found[1][0].detach(), 1e-10)
    close(found[0][1], found[1][1], 1e-4)  # through L, whose condition number is 1e6


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision(kind):
    net, x, y, x_test, num_outputs = build("mlp")
    prior, likelihood = hyperparameters(kind, num_outputs)
    make_laplace(net, x, y, prior, likelihood, "weight")  # binds the prior
    dense = dense_reference(net, x, y, x_test, prior, likelihood, "network")
    for space in ("weight", "function"):
        twin, noise = copy.deepcopy(prior), copy.deepcopy(likelihood)
        laplace = make_laplace(net, x, y, twin, noise, space, dtype=torch.float32)
        factors = laplace.training.linearized.factors(x_test)[1]
        # K** - Vᵀ V cancels: a part in 1e3 of the prior's variance is left
        close(laplace.posterior().covariance(factors), dense.covariance.detach(), 1e-3)
        (slope,) = torch.autograd.grad(laplace.log_marginal_likelihood(), twin.raw_precision)
        (wanted,) = torch.autograd.grad(dense.log_evidence, prior.raw_precision, retain_graph=True)
        close(slope, wanted, 1e-3)
