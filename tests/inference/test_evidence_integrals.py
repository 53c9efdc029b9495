"""The evidence against integrals: closed form, quadrature, importance sampling.

A network that is linear in its weights is its own linearisation, so that log Z, the evidence of the
Bayesian model itself, is what log q approximates.
"""

from __future__ import annotations

import math

import pytest
import torch
from laplace_cases import make_laplace
from torch import nn

from lingp.likelihoods import Bernoulli, Gaussian
from lingp.priors import Isotropic

N = 20


def linear_model(num_inputs, num_outputs=1, bias=False):
    """A linear network with random weights, inputs and its own noise-free outputs."""
    generator = torch.Generator().manual_seed(num_inputs)
    net = nn.Linear(num_inputs, num_outputs, bias=bias).double()
    x = torch.randn(N, num_inputs, generator=generator, dtype=torch.float64)
    weights = 1.5 * torch.randn(num_outputs, num_inputs, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(0.3 * torch.ones_like(weights))
        if bias:
            net.bias.fill_(0.1)
    return net, x, x @ weights.mT, generator


@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_conjugate_evidence_is_the_marginal_normal_density(num_outputs, space):
    """y ~ N(J μ0, J Σ0 Jᵀ + σ² I), whatever weights the network has."""
    net, x, clean, generator = linear_model(4, num_outputs, bias=True)
    y = clean + 0.3 * torch.randn(clean.shape, generator=generator, dtype=torch.float64)
    prior, likelihood = Isotropic(0.6, mean=0.2), Gaussian(0.15)
    laplace = make_laplace(net, x, y, prior, likelihood, space, "refit")
    evidence = laplace.log_marginal_likelihood()
    design = torch.cat([x, torch.ones(N, 1, dtype=torch.float64)], 1)
    covariance = design @ design.mT / prior.precision + likelihood.noise * torch.eye(N).double()
    mean = design @ torch.full((5,), 0.2, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(mean, covariance)
    expected = normal.log_prob(y.mT).sum()
    torch.testing.assert_close(evidence, expected, rtol=1e-12, atol=1e-12)
    parameters = [prior.raw_precision, likelihood.raw_noise]
    for a, e in zip(
        torch.autograd.grad(evidence, parameters),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-10)


def logistic(num_inputs, precision, space="weight", mean="refit"):
    """Bayesian logistic regression and its log joint density, vectorised over weights (S x P)."""
    net, x, f, generator = linear_model(num_inputs)
    y = torch.bernoulli(f.sigmoid(), generator=generator)
    laplace = make_laplace(net, x, y, Isotropic(precision), Bernoulli(), space, mean)

    def log_joint(weights):
        z = (2 * y - 1).mT * (weights @ x.mT)
        log_prior = -0.5 * precision * weights.square().sum(-1)
        log_prior = log_prior + 0.5 * num_inputs * math.log(precision / (2 * math.pi))
        return nn.functional.logsigmoid(z).sum(-1) + log_prior

    return laplace, log_joint


def importance_sample(laplace, log_joint, num_samples=100_000, freedom=5.0):
    """log Z and its standard error, with Student-t draws around the Laplace posterior."""
    generator = torch.Generator().manual_seed(0)
    posterior = laplace.posterior()
    mode = laplace.training.linearized.weights() + laplace.weight_shift()
    size = len(mode)
    draws = posterior.scale * posterior.sample(num_samples, generator).mT
    # Student-t: a normal over the root of an independent mean square of `freedom` normals
    normals = torch.randn(num_samples, int(freedom), generator=generator, dtype=torch.float64)
    factor = normals.square().mean(1)
    draws = draws / factor.sqrt().unsqueeze(1)
    # Cov = Σ0^{1/2} (I + ΦᵀΦ)⁻¹ Σ0^{1/2}
    whitened = (draws / posterior.scale).mT
    square = (whitened * (whitened + posterior.whitened_t_product(
        posterior.whitened_product(whitened)
    ))).sum(0)  # fmt: skip
    log_det = 2 * posterior.scale.log().sum() - posterior.log_determinant()
    log_density = (
        math.lgamma((freedom + size) / 2) - math.lgamma(freedom / 2)
        - 0.5 * size * math.log(freedom * math.pi) - 0.5 * log_det
        - 0.5 * (freedom + size) * torch.log1p(square / freedom)
    )  # fmt: skip
    log_weights = log_joint(mode + draws) - log_density
    largest = log_weights.max()
    weights = (log_weights - largest).exp()
    estimate = largest + weights.mean().log()
    error = weights.std() / weights.mean() / math.sqrt(num_samples)
    return estimate.item(), error.item()


def quadrature(log_joint, laplace, num_nodes=400, width=14.0):
    """log Z in two dimensions by the trapezoidal rule, which converges geometrically here."""
    posterior = laplace.posterior()
    mode = laplace.training.linearized.weights() + laplace.weight_shift()
    covariance = torch.diag(posterior.scale) @ posterior.precision_solve(
        torch.diag(posterior.scale)
    )
    root = torch.linalg.cholesky(covariance)
    line = torch.linspace(-width, width, num_nodes, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    values = log_joint(mode + grid @ root.mT)
    cell = 2 * (line[1] - line[0]).log() + root.diagonal().log().sum()
    return (values.logsumexp(0) + cell).item()


@pytest.mark.parametrize("precision", [0.3, 3.0])
def test_importance_sampling_agrees_with_quadrature(precision):
    laplace, log_joint = logistic(2, precision)
    with torch.no_grad():
        coarse, exact = (quadrature(log_joint, laplace, n) for n in (200, 400))
        assert coarse == pytest.approx(exact, abs=1e-10)
        estimate, error = importance_sample(laplace, log_joint)
    assert error < 2e-3
    assert abs(estimate - exact) < 4 * error


# log q - log Z, for N = 20: Laplace's own error. It overlooks the posterior's tail away from the
# boundary that the data draw, more so with more weights and a looser prior; log Z is -13.8, -13.5,
# -16.4 and -14.2.
MEASURED = [(2, 0.3, -0.053), (2, 3.0, -0.020), (6, 0.3, -0.341), (6, 3.0, -0.115)]


@pytest.mark.parametrize(("num_inputs", "precision", "measured"), MEASURED)
def test_logistic_regression_against_importance_sampling(num_inputs, precision, measured):
    values = []
    for space in ("weight", "function"):
        laplace, log_joint = logistic(num_inputs, precision, space)
        with torch.no_grad():
            values.append(laplace.log_marginal_likelihood().item())
    assert values[0] == pytest.approx(values[1], abs=1e-10)
    with torch.no_grad():
        estimate, error = importance_sample(laplace, log_joint)
    assert error < 5e-3
    assert values[0] - estimate == pytest.approx(measured, abs=1e-3 + 4 * error)
