"""Hyperparameter search: optimizers agree, evidence rises, convergence is by gradient norm."""

from __future__ import annotations

import math
import warnings

import gpytorch
import pytest
import torch
from laplace_cases import CASES, hyperparameters, make_laplace

from lingp.inference import (
    ConvergenceWarning,
    FunctionSpace,
    MisleadingObjectiveWarning,
    WeightSpace,
    leave_one_out,
    optimize,
)
from lingp.inference.factorize import OutOfRangeError
from lingp.inference.tuning import hyperparameters as module
from lingp.inference.tuning.objectives import SpectralEvidence
from lingp.inference.tuning.search import maximize, maximize_from_starts, start_shifts
from lingp.inference.tuning.spectrum import has_spectral_evidence
from lingp.likelihoods import Categorical, Gaussian, Poisson, StudentT, Tempered
from lingp.models import LinearizedGP
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
    evidence = SpectralEvidence(laplace)
    for precision, noise in ((0.7, 0.2), (10.0, 0.01), (0.01, 3.0)):
        prior.precision, likelihood.noise = precision, noise
        actual = evidence.value()
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
        result = optimize(laplace, tolerance=1e-7, num_restarts=0)
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


def classifier(mean="network", space="function", prior=None, num_data=30):
    net, x, _, _ = CASES[1].build(num_data=num_data)
    generator = torch.Generator().manual_seed(0)
    likelihood = Categorical()
    y = likelihood.sample(3 * net(x).detach(), generator=generator)
    y = likelihood.check_targets(y.reshape(-1), (3,), torch.float64)
    return make_laplace(net, x, y, prior or Isotropic(0.7), likelihood, space, mean)


@pytest.mark.parametrize("space", SPACES)
def test_a_curvature_that_stays_needs_one_eigendecomposition(space):
    """Softmax with the network's mean: the only scale is the isotropic precision."""
    found = []
    for method in ("auto", "l-bfgs", "mackay"):
        laplace = classifier(space=space)
        assert has_spectral_evidence(laplace)
        result = optimize(laplace, method=method, tolerance=1e-8)
        assert result.converged
        found.append((result.log_marginal_likelihood, laplace.prior.precision.item()))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] == pytest.approx(found[2], rel=1e-5)


def test_weighted_and_missing_data_keep_the_free_search():
    found = []
    for method in ("auto", "l-bfgs"):
        net, x, y, _ = CASES[1].build(num_data=30)
        y[4, 0] = float("nan")
        laplace = make_laplace(net, x, y, Isotropic(0.7), Gaussian(0.2), "function", "refit")
        laplace.training.weights = torch.linspace(0.0, 2.0, 30, dtype=torch.float64)
        result = optimize(laplace, method=method, tolerance=1e-8)
        assert result.method == ("eigendecomposition" if method == "auto" else "L-BFGS")
        found.append((result.log_marginal_likelihood, laplace.likelihood.noise.item()))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_the_default_objective_of_a_refitted_classifier_is_the_networks_evidence():
    reference = classifier("network")
    expected = optimize(reference)
    laplace = classifier("refit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = optimize(laplace)
    assert result.mean == "network"
    assert laplace.mean == "refit"
    assert result.log_marginal_likelihood == pytest.approx(expected.log_marginal_likelihood)
    assert laplace.prior.precision.item() == pytest.approx(reference.prior.precision.item())


@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(0.2), Poisson(), Tempered(StudentT())],
    ids=["gaussian", "poisson", "tempered"],
)
def test_others_have_the_evidence_of_their_own_mean(likelihood):
    net, x, y, _ = CASES[1].build()
    y = y.abs().round()
    laplace = make_laplace(net, x, y, Isotropic(0.7), likelihood, "function", "refit")
    with warnings.catch_warnings():
        warnings.simplefilter("error", MisleadingObjectiveWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = optimize(laplace, num_restarts=0, max_evaluations=5)
    assert result.mean == "refit"


@pytest.mark.parametrize(
    ("mean", "objective"),
    [("refit", "evidence"), ("refit", "leave_one_out"), ("network", "leave_one_out")],
)
def test_misleading_objectives_warn(mean, objective):
    laplace = classifier(mean, num_data=10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = optimize(laplace, objective=objective, num_restarts=0, max_evaluations=3)
    messages = [w for w in caught if w.category is MisleadingObjectiveWarning]
    assert len(messages) == 1
    assert "mean" in str(messages[0].message)
    assert (result.mean, result.objective) == (mean, objective)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("mean", MEANS)
def test_leave_one_out_is_maximised(mean, space):
    found = []
    for method in ("auto", "l-bfgs"):
        net, x, y, _ = CASES[1].build(num_data=25)
        prior, likelihood = Isotropic(0.7), Gaussian(0.2)
        laplace = make_laplace(net, x, y, prior, likelihood, space, mean)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MisleadingObjectiveWarning)
            result = optimize(
                laplace, objective="leave_one_out", method=method, tolerance=1e-6, num_restarts=0
            )
        assert result.converged
        assert result.objective == "leave_one_out"
        assert result.method == ("eigendecomposition" if method == "auto" else "L-BFGS")
        assert result.value > result.initial_value
        with torch.no_grad():
            assert leave_one_out(laplace).total().item() == result.value
        assert "leave-one-out" in str(result)
        with pytest.raises(AttributeError, match="leave-one-out"):
            _ = result.log_marginal_likelihood
        found.append(result.value)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_leave_one_out_with_several_precisions():
    net, x, y, _ = CASES[1].build(num_data=25)
    laplace = make_laplace(net, x, y, Layerwise(0.7), Gaussian([0.1, 0.2, 0.3]), "weight", "refit")
    result = optimize(laplace, objective="leave_one_out", tolerance=1e-4, num_restarts=0)
    assert result.converged
    assert result.method == "L-BFGS"
    assert result.value > result.initial_value + 1.0


def test_refitted_counts_by_leave_one_out():
    net, x, y, _ = CASES[1].build(num_data=15)
    laplace = make_laplace(net, x, y.abs().round(), Isotropic(0.7), Poisson(), "function", "refit")
    result = optimize(laplace, objective="leave_one_out", tolerance=1e-5, num_restarts=0)
    assert result.converged
    assert result.mean == "refit"
    (gradient,) = torch.autograd.grad(leave_one_out(laplace).total(), [laplace.prior.raw_precision])
    assert abs(gradient.item()) < 1e-5 * y.numel()


def test_restarts_find_the_better_of_two_optima():
    x = torch.tensor([4.0], dtype=torch.float64, requires_grad=True)

    def objective():  # a low hill at 4, a high one at 0
        return (-(x - 4).square()).exp().sum() + 2 * (-x.square()).exp().sum()

    alone = maximize_from_starts(objective, [x], 1e-8, 100, start_shifts(1, 0))
    assert (alone.num_starts, alone.num_agreeing) == (1, 1)
    assert x.item() == pytest.approx(4.0, abs=1e-3)
    search = maximize_from_starts(objective, [x], 1e-8, 100, start_shifts(1, 2))
    assert (search.num_starts, search.num_agreeing) == (3, 1)
    assert x.item() == pytest.approx(0.0, abs=1e-3)
    assert search.value == pytest.approx(2.0, abs=1e-3)


def test_starts_are_the_same_every_time():
    assert start_shifts(2, 0) == [(0.0, 0.0)]
    assert start_shifts(2, 2) == [(0.0, 0.0), (-4.0, 0.0), (4.0, 0.0)]
    assert len(start_shifts(2, None)) == 9
    assert start_shifts(2, 12) == start_shifts(2, 12)
    assert len(set(start_shifts(2, 12))) == 13
    seeded = [start_shifts(2, 12, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert seeded[0] == seeded[1] != start_shifts(2, 12)


def test_options_are_checked():
    laplace = classifier(num_data=6)
    for options, message in (
        ({"objective": "loo"}, "objective: expected.*'loo'"),
        ({"method": "adam"}, "method: expected.*'adam'"),
        ({"num_restarts": -1}, "num_restarts: expected.*-1"),
    ):
        with pytest.raises(ValueError, match=message):
            optimize(laplace, **options)


@pytest.mark.filterwarnings("ignore")  # of rounding, which is the point
@pytest.mark.parametrize("method", ["auto", "mackay"])
def test_rounding_below_the_tolerance_does_not_cost_a_factorisation_per_evaluation(method):
    """A spectrum that the default tolerance turns down serves where 1e-3 nats a datum will do."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True) + 0.01 * torch.randn(40, 1, generator=generator).double()
    net = torch.nn.Linear(3, 1).double()
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.bias.zero_()
    for tolerance, from_spectrum in ((1e-6, False), (1e-1, True)):
        gp = LinearizedGP(net, Gaussian(noise=1e-13), prior=1.0)
        gp.likelihood.raw_noise.requires_grad_(False)
        gp.fit(x, y, progress=False)
        laplace = gp.laplace
        eigenvalues = SpectralEvidence(laplace).spectrum.eigenvalues
        # between what the two tolerances allow
        loss = len(eigenvalues) * torch.finfo(torch.float64).eps * float(eigenvalues.max())
        assert 1e-2 < loss < 4.0
        assert SpectralEvidence(laplace).resolved(tolerance * 40) == from_spectrum
        found = gp.optimize_hyperparameters(
            objective="evidence", method=method, tolerance=tolerance, num_restarts=0
        )
        if method == "auto":
            assert found.method == ("eigendecomposition" if from_spectrum else "L-BFGS")
        exact = gp.log_marginal_likelihood().item()
        assert abs(found.value - exact) < max(loss, 1e-6)
