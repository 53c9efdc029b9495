"""Hyperparameter search: optimizers agree, evidence rises, convergence is by gradient norm."""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch
from laplace_cases import CASES, hyperparameters, make_laplace

from lingp.inference import ConvergenceWarning, FunctionSpace, WeightSpace, optimize
from lingp.inference import hyperparameters as module
from lingp.inference.factorize import OutOfRangeError
from lingp.inference.search import maximize
from lingp.inference.spectrum import has_spectral_evidence, spectral_evidence
from lingp.likelihoods import Gaussian
from lingp.priors import Isotropic, Layerwise

MEANS = ["network", "refit"]
SPACES = ["weight", "function"]


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[7]], ids=lambda case: case.name)
def test_spectral_evidence_is_the_evidence(case, space, mean):
    net, x, y, _ = case.build(num_data=20)
    prior, likelihood = Isotropic(0.7, mean=0.1), Gaussian(0.2)
    laplace = make_laplace(net, x, y, prior, likelihood, space, mean)
    evidence = spectral_evidence(laplace)
    for precision, noise in ((0.7, 0.2), (10.0, 0.01), (0.01, 3.0)):
        prior.precision, likelihood.noise = precision, noise
        actual = evidence()
        expected = laplace.log_marginal_likelihood()
        assert actual.item() == pytest.approx(expected.item(), rel=1e-8)
        parameters = [prior.raw_precision, likelihood.raw_noise]
        for a, e in zip(
            torch.autograd.grad(actual, parameters),
            torch.autograd.grad(expected, parameters),
            strict=True,
        ):
            assert a.item() == pytest.approx(e.item(), rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("space", SPACES)
def test_optimizers_agree(space, mean):
    net, x, y, _ = CASES[1].build(num_data=40)
    found = []
    for spectral in (True, False):
        prior, likelihood = Isotropic(0.7), Gaussian(0.2)
        laplace = make_laplace(net, x, y, prior, likelihood, space, mean)
        method = "auto" if spectral else "l-bfgs"
        result = optimize(laplace, tolerance=1e-8, method=method)
        assert result.converged
        assert result.method == ("eigendecomposition" if spectral else "L-BFGS")
        assert result.mean == mean
        assert result.log_marginal_likelihood > result.initial_log_marginal_likelihood
        with torch.no_grad():
            assert laplace.log_marginal_likelihood().item() == result.log_marginal_likelihood
        found.append(
            (result.log_marginal_likelihood, prior.precision.item(), likelihood.noise.item())
        )
    for spectral, general in zip(*found, strict=True):
        assert spectral == pytest.approx(general, rel=1e-5)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize(
    "kind", ["layerwise/scalar", "isotropic/per-output", "layerwise/per-output"]
)
def test_spaces_find_the_same_optimum(kind, mean):
    net, x, y, _ = CASES[1].build(num_data=40)
    found = []
    for space in SPACES:
        prior, likelihood = hyperparameters(kind, 3)
        laplace = make_laplace(net, x, y, prior, likelihood, space, mean)
        result = optimize(laplace, tolerance=1e-7)
        assert result.converged
        assert result.method == "L-BFGS"
        assert result.log_marginal_likelihood > result.initial_log_marginal_likelihood
        parameters = [*prior.parameters(), *likelihood.parameters()]
        gradients = torch.autograd.grad(laplace.log_marginal_likelihood(), parameters)
        assert max(g.abs().max() for g in gradients) <= 1e-7 * y.numel() * 1.5
        found.append(result.log_marginal_likelihood)
    assert found[0] == pytest.approx(found[1], rel=1e-7)


def test_noise_of_a_fixed_network_is_near_the_mean_square():
    """With the network's mean and hardly any flexibility, noise = |y - f*|² / N·C."""
    net, x, y, _ = CASES[1].build(num_data=40)
    prior, likelihood = Isotropic(1e5), Gaussian(5.0)
    prior.raw_precision.requires_grad_(False)
    laplace = make_laplace(net, x, y, prior, likelihood, "function")
    optimize(laplace)
    square = (y - net(x).detach()).square().mean()
    assert likelihood.noise.item() == pytest.approx(square.item(), rel=1e-2)
    assert prior.precision.item() == pytest.approx(1e5)


@pytest.mark.parametrize("kind", ["isotropic/scalar", "layerwise/per-output"])
def test_gpytorch_priors_count(kind):
    net, x, y, _ = CASES[1].build(num_data=40)
    prior, likelihood = hyperparameters(kind, 3)
    prior.register_prior("precision_prior", gpytorch.priors.GammaPrior(3.0, 0.01), "precision")
    likelihood.register_prior(
        "noise_prior", gpytorch.priors.LogNormalPrior(math.log(10.0), 0.05), "noise"
    )
    laplace = make_laplace(net, x, y, prior, likelihood, "function")
    assert optimize(laplace, tolerance=1e-6).converged
    objective = laplace.log_marginal_likelihood() + module.hyperprior([prior, likelihood])()
    parameters = [*prior.parameters(), *likelihood.parameters()]
    gradients = torch.autograd.grad(objective, parameters)
    assert max(g.abs().max() for g in gradients) < 2e-4
    # far from the prior-free optimum (0.1), drawn towards 10
    assert (likelihood.noise > 1).all()


def test_fixed_hyperparameters_stay():
    net, x, y, _ = CASES[1].build()
    prior, likelihood = Layerwise(0.7), Gaussian(0.2)
    likelihood.raw_noise.requires_grad_(False)
    laplace = make_laplace(net, x, y, prior, likelihood, "function")
    assert optimize(laplace).converged
    assert likelihood.noise.item() == pytest.approx(0.2)
    prior.raw_precision.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to optimise"):
        optimize(laplace)


def test_an_unfinished_search_says_so():
    net, x, y, _ = CASES[1].build()
    laplace = make_laplace(net, x, y, Layerwise(100.0), Gaussian(20.0), "function")
    with pytest.warns(ConvergenceWarning, match="gradient norm.*raise"):
        result = optimize(laplace, max_evaluations=2)
    assert not result.converged
    assert "not converged" in str(result)


@pytest.mark.parametrize("edge", ["raises", "nan", "inf"])
def test_a_search_turns_back_from_where_there_is_no_value(edge):
    x = torch.tensor([-30.0], dtype=torch.float64, requires_grad=True)

    def objective():
        if x.item() > 2.0:  # the optimum is at 1, the first steps go far past it
            if edge == "raises":
                raise OutOfRangeError
            return float(edge) * x.sum()
        return -(x - 1.0).pow(4).sum() - (x - 1.0).square().sum()

    search = maximize(objective, [x], 1e-8, 200)
    assert x.item() == pytest.approx(1.0, abs=1e-6)
    assert search.gradient_norm < 1e-8


def test_past_rounding_the_search_goes_by_qr():
    """In float32 with this noise, eigenvalues of the squared matrix have no correct digit."""
    net, x, y, _ = CASES[1].build(num_data=40)
    results = []
    for dtype in (torch.float32, torch.float64):
        prior, likelihood = Isotropic(1e-4), Gaussian(1e-3)
        likelihood.raw_noise.requires_grad_(False)
        laplace = make_laplace(net, x, y, prior, likelihood, "function", "network", dtype)
        with pytest.warns() if dtype == torch.float32 else _nothing():
            result = optimize(laplace, tolerance=1e-5)
        results.append(prior.precision.item())
        assert result.method == ("L-BFGS" if dtype == torch.float32 else "eigendecomposition")
    assert results[0] == pytest.approx(results[1], rel=0.05)


def _nothing():
    import contextlib

    return contextlib.nullcontext()


def test_only_plain_hyperparameters_have_spectral_evidence():
    net, x, y, _ = CASES[1].build()
    for kind, expected in (
        ("isotropic/scalar", True),
        ("layerwise/scalar", False),
        ("isotropic/per-output", False),
    ):
        for space in SPACES:
            laplace = make_laplace(net, x, y, *hyperparameters(kind, 3), space)
            assert has_spectral_evidence(laplace) == expected
            assert laplace.method in (WeightSpace, FunctionSpace)
