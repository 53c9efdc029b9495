"""MacKay's fixed point is the optimum that L-BFGS finds."""

from __future__ import annotations

import math
import warnings

import gpytorch
import pytest
import torch
from laplace_cases import CASES, hyperparameters, make_laplace

from lingp.inference import MisleadingObjectiveWarning, RoundingWarning, optimize
from lingp.likelihoods import Categorical, Gaussian, StudentT
from lingp.priors import Isotropic, Layerwise

MEANS = ["network", "refit"]
SPACES = ["weight", "function"]
KINDS = ["isotropic/scalar", "isotropic/per-output", "layerwise/scalar", "layerwise/per-output"]


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kind", KINDS)
def test_reaches_the_optimum_of_l_bfgs(kind, mean):
    net, x, y, _ = CASES[1].build(num_data=25)
    # precisions of layers that the data say nothing about run off on a flat slope
    flat = kind.startswith("layerwise") and mean == "refit"
    found = []
    for method in ("mackay", "l-bfgs"):
        prior, likelihood = hyperparameters(kind, 3)
        laplace = make_laplace(net, x, y, prior, likelihood, "function", mean)
        restarts = 0 if method == "l-bfgs" else None
        tolerance = 1e-5 if flat else 1e-7
        result = optimize(laplace, method=method, tolerance=tolerance, num_restarts=restarts)
        assert result.converged
        found.append(result.log_marginal_likelihood)
        assert result.method == ("MacKay" if method == "mackay" else "L-BFGS")
    assert found[0] == pytest.approx(found[1], abs=1e-2 if flat else 1e-8)


def test_classification_with_the_networks_mean():
    net, x, _, _ = CASES[1].build(num_data=40)
    labels = torch.arange(40).remainder(3)
    found = []
    for method in ("mackay", "l-bfgs", "auto"):
        likelihood = Categorical()
        y = likelihood.check_targets(labels, (3,), torch.float64)
        laplace = make_laplace(net, x, y, Layerwise(0.7), likelihood, "weight")
        result = optimize(laplace, method=method, tolerance=1e-7)
        assert result.converged
        found.append(result.log_marginal_likelihood)
    assert found[0] == pytest.approx(found[1], rel=1e-8)
    assert found[0] == pytest.approx(found[2], rel=1e-8)


def test_fixed_hyperparameters_stay():
    net, x, y, _ = CASES[1].build()
    prior, likelihood = Layerwise(0.7), Gaussian(0.2)
    likelihood.raw_noise.requires_grad_(False)
    laplace = make_laplace(net, x, y, prior, likelihood, "function")
    assert optimize(laplace, method="mackay").converged
    assert likelihood.noise.item() == pytest.approx(0.2)


def test_weights_and_missing_targets_count():
    """A datum twice is a datum with weight two; the fixed point knows how many values it saw."""
    net, x, y, _ = CASES[1].build(num_data=10)
    y[3, 1] = float("nan")
    found = []
    for rows, weights in (([*range(10), 3, 3], None), (range(10), [1.0] * 10)):
        if weights is not None:
            weights[3] = 3.0
            weights = torch.tensor(weights, dtype=torch.float64)
        index = list(rows)
        likelihood = Gaussian([0.1, 0.2, 0.3])
        laplace = make_laplace(net, x[index], y[index], Isotropic(), likelihood, "function")
        laplace.training.weights = weights
        result = optimize(laplace, method="mackay", tolerance=1e-8)
        assert result.converged
        found.append(torch.cat([likelihood.noise, laplace.prior.precision.reshape(1)]))
    torch.testing.assert_close(*found, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mean", MEANS)
def test_a_far_start_ends_or_says_so(mean):
    net, x, y, _ = CASES[1].build(num_data=40)
    for precision, noise in ((1e8, 1e-6), (1e-8, 1e4)):
        laplace = make_laplace(net, x, y, Isotropic(precision), Gaussian(noise), "function", mean)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RoundingWarning)
            result = optimize(laplace, method="mackay", max_evaluations=300)
        assert result.converged
        assert math.isfinite(laplace.prior.precision.item())


def test_says_what_it_cannot_do():
    net, x, y, _ = CASES[1].build()

    def attempt(message, prior=None, likelihood=None, mean="network", **options):
        prior, likelihood = prior or Isotropic(), likelihood or Gaussian()
        laplace = make_laplace(net, x, y, prior, likelihood, "function", mean)
        with pytest.raises(ValueError, match=message):
            optimize(laplace, method="mackay", **options)

    prior = Isotropic()
    prior.register_prior("precision_prior", gpytorch.priors.GammaPrior(3.0, 0.01), "precision")
    attempt("GPyTorch priors.*l-bfgs", prior=prior)
    prior = Isotropic(precision_constraint=gpytorch.constraints.Interval(0.1, 10.0))
    attempt("raw_precision to be a logarithm.*l-bfgs", prior=prior)
    attempt("not for raw_.* of StudentT.*l-bfgs", likelihood=StudentT())
    attempt("maximises the evidence", objective="leave_one_out")
    labels = Categorical().check_targets(torch.arange(12).remainder(3), (3,), torch.float64)
    laplace = make_laplace(net, x, labels, Isotropic(), Categorical(), "function", "refit")
    with (
        pytest.warns(MisleadingObjectiveWarning),
        pytest.raises(ValueError, match="curvature that stays"),
    ):
        optimize(laplace, method="mackay", objective="evidence")
