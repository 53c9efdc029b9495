"""Every likelihood of the table: posterior, mode, evidence and gradients = dense formulas."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from dense_reference import build
from laplace_cases import dense_jacobian, make_laplace
from likelihood_cases import CASES

SPACES = ["weight", "function"]


def moderate(case):
    """Whether dense formulas with explicit inverses resolve the case in float64."""
    likelihood, y, f = case.build()
    with torch.no_grad():
        return case.reference(likelihood, y, f).abs().max() < 1e5


def differentiable(case):
    """The case with a curvature that follows the hyperparameters."""
    if not case.name.startswith("student-t"):
        return case

    def fisher(likelihood, y, f):
        """(ν + 1) / ((ν + 3) s²): the table has it by quadrature, without derivatives."""
        freedom, scale = likelihood.degrees_of_freedom, likelihood.scale
        return torch.diag_embed(((freedom + 1) / ((freedom + 3) * scale.square())).expand_as(f))

    return dataclasses.replace(case, curvature=fisher)


MODERATE = [differentiable(case) for case in CASES if moderate(case)]
EVERY = [(case, 1 + i % 3) for i, case in enumerate(MODERATE)]
IDS = [f"{case.name}-depth{depth}" for case, depth in EVERY]
every = pytest.mark.parametrize(("case", "depth"), EVERY, ids=IDS)

# Its density is unbounded where σ -> 0: under a loose prior the mode is at e^20 times more
# curvature than float64 resolves.
PRECISIONS = {"distribution-normal": 30.0}


def close(actual, expected, tolerance=1e-8):
    """Relative to the largest entry, or absolute where that is below 1 (nats, or a variance)."""
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)


def laplace_of(dense, space, mean, sites="mean"):
    return make_laplace(
        dense.net, dense.x, dense.y, dense.prior, dense.likelihood, space, mean, sites=sites,
        weights=dense.row_weights,
    )  # fmt: skip


def check_values(dense, laplaces, theta, evidence):
    """Evidence, gradients and covariances of both spaces; theta is the dense mean."""
    modules = (dense.prior, dense.likelihood)
    parameters = [p for m in modules for p in m.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(evidence, parameters, retain_graph=True)
    x_test = 1.5 * dense.x[:3]
    jacobian = dense_jacobian(dense.net, x_test)
    at = dense.f(theta) if laplaces[0].sites == "mean" else dense.outputs
    covariance = dense.covariance(jacobian, at).detach()
    blocks = torch.einsum("ncnd->ncd", covariance.view((3, dense.case.num_outputs) * 2))
    for laplace in laplaces:
        value = laplace.log_marginal_likelihood()
        close(value, evidence)
        for a, e in zip(torch.autograd.grad(value, parameters), gradients, strict=True):
            close(a, e)
        _, factors = laplace.training.linearized.factors(x_test)
        close(laplace.posterior().covariance(factors), covariance)
        close(laplace.posterior().marginal_covariance(factors), blocks)


@every
def test_network_mean_equals_dense_formulas(case, depth):
    dense = build(case, depth)
    laplaces = [laplace_of(dense, space, "network") for space in SPACES]
    assert laplaces[0].weight_shift() is None
    check_values(dense, laplaces, dense.weights, dense.log_evidence("network"))


@every
def test_refit_mean_equals_dense_formulas(case, depth):
    dense = build(case, depth, precision=PRECISIONS.get(case.name, 0.7))
    laplaces = [laplace_of(dense, space, "refit") for space in SPACES]
    theta = dense.mode(dense.weights + laplaces[0].weight_shift())
    for laplace in laplaces:
        mode = laplace.mode()
        assert mode.converged
        close(dense.weights + laplace.weight_shift(), theta)
        close(mode.outputs, dense.f(theta))
        close(torch.tensor(mode.objective, dtype=torch.float64), dense.objective(theta).detach())
    evidence = dense.log_evidence("refit", start=theta.detach())
    check_values(dense, laplaces, theta, evidence)


@pytest.mark.parametrize("name", ["categorical-3", "heteroscedastic-exp-1", "student-t"])
def test_refit_mean_with_the_network_s_sites_equals_dense_formulas(name):
    case = next(case for case in MODERATE if case.name == name)
    dense = build(case, 2)
    laplaces = [laplace_of(dense, space, "refit", "network") for space in SPACES]
    theta = dense.mode(dense.weights + laplaces[0].weight_shift())
    evidence = dense.log_evidence("refit", "network", start=theta.detach())
    check_values(dense, laplaces, theta, evidence)


@pytest.mark.parametrize("name", ["categorical-3", "poisson", "heteroscedastic-softplus-1"])
def test_refit_gradient_by_finite_differences(name):
    """Through the mode: the curvature moves with it."""
    case = next(case for case in MODERATE if case.name == name)
    dense = build(case, 2)
    laplace = laplace_of(dense, "function", "refit")
    (gradient,) = torch.autograd.grad(
        laplace.log_marginal_likelihood(), [dense.prior.raw_precision]
    )
    step, raw = 1e-4, dense.prior.raw_precision
    with torch.no_grad():
        for i, g in list(enumerate(gradient.tolist()))[::3]:
            values = []
            for shift in (step, -step):
                raw[i] += shift
                values.append(float(laplace.log_marginal_likelihood()))
                raw[i] -= shift
            assert g == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-6, abs=1e-7)
