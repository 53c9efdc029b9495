"""Tuning on validation data: the optimum of the predictive density, found for free."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from laplace_cases import CASES, hyperparameters, make_laplace

from lingp.inference import BoundaryWarning, tune_on_validation
from lingp.likelihoods import Bernoulli, Categorical, Gaussian, Poisson, Tempered
from lingp.priors import Isotropic, Layerwise

MEANS = ["network", "refit"]
SPACES = ["weight", "function"]


def predictive_density(laplace, x, y, weights=None):
    """The same by the model itself at its current hyperparameters."""
    with torch.no_grad():
        outputs, factors = laplace.training.linearized.factors(x)
        covariance = laplace.posterior().marginal_covariance(factors)
        shift = laplace.weight_shift()
        if shift is not None:
            outputs = outputs + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)
        generator = torch.Generator().manual_seed(0)
        predictive = laplace.likelihood.predictive(outputs, covariance, generator=generator)
        each = predictive.log_prob(y)
        return float((each if weights is None else weights * each).sum())


def problem(case, make, num_data=15, num_validation=15):
    """A network that is too sure of itself, training and validation rows."""
    net, x, _, x_valid = case.build(num_data, num_validation)
    generator = torch.Generator().manual_seed(1)
    likelihood, other = make(), copy.deepcopy(net)
    with torch.no_grad():
        for p in other.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        targets = [likelihood.sample(other(z), generator=generator) for z in (x, x_valid)]
        net[-1].weight *= {Categorical: 1.5, Bernoulli: 3.0}.get(make, 1.0)
    return net, x, targets[0], x_valid, targets[1]


def is_optimum(laplace, x, y, names):
    """Moving each kind of hyperparameter by 5 % either way doesn't help."""
    best = predictive_density(laplace, x, y)
    moves = {
        "prior variances": (laplace.prior, "precision"),
        "noise": (laplace.likelihood, "noise"),
        "temperature": (laplace.likelihood, "temperature"),
    }
    for name in names:
        owner, attribute = moves[name]
        value = getattr(owner, attribute).detach().clone()
        for factor in (0.95, 1 / 0.95):
            setattr(owner, attribute, factor * value)
            assert predictive_density(laplace, x, y) <= best + 1e-9 * abs(best)
        setattr(owner, attribute, value)
    return best


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", ["isotropic/scalar", "layerwise/per-output"])
def test_gaussian_prior_and_noise_together(kind, space, mean):
    net, x, y, x_valid, y_valid = problem(CASES[1], lambda: Gaussian(0.2))
    prior, likelihood = hyperparameters(kind, 3)
    laplace = make_laplace(net, x, y, prior, likelihood, space, mean)
    before = predictive_density(laplace, x_valid, y_valid)
    ratios = prior.precision.detach() / prior.precision.detach().mean()
    result = tune_on_validation(laplace, [(x_valid, y_valid, None)])
    assert set(result.scales) == {"prior variances", "noise"}
    assert result.method == "eigendecomposition"
    assert result.mean == mean
    assert result.initial_value == pytest.approx(before, rel=1e-9)
    assert result.value > result.initial_value
    assert not result.at_boundary
    best = is_optimum(laplace, x_valid, y_valid, result.scales)
    assert best == pytest.approx(result.value, rel=1e-8)
    new = prior.precision.detach()
    torch.testing.assert_close(new / new.mean(), ratios)


@pytest.mark.parametrize(
    ("make", "mean"),
    [(Bernoulli, "network"), (Categorical, "network"), (Poisson, "network"), (Poisson, "refit")],
)
def test_other_likelihoods(make, mean):
    net, x, y, x_valid, y_valid = problem(CASES[1], make)
    laplace = make_laplace(net, x, y, Isotropic(0.7), make(), "function", mean)
    span = 1e4 if mean == "network" else 1e2
    result = tune_on_validation(laplace, [(x_valid, y_valid, None)], span=span)
    assert set(result.scales) == {"prior variances"}
    assert result.method == ("eigendecomposition" if mean == "network" else "factorisations")
    assert result.value > result.initial_value
    assert not result.at_boundary
    best = is_optimum(laplace, x_valid, y_valid, result.scales)
    assert best == pytest.approx(result.value, rel=1e-6)


def test_temperature_of_a_tempered_likelihood():
    net, x, y, x_valid, y_valid = problem(CASES[1], Bernoulli)
    likelihood = Tempered(Bernoulli(), 2.0, learn=True)
    prior = Isotropic(0.7)
    prior.raw_precision.requires_grad_(False)
    laplace = make_laplace(net, x, y, prior, likelihood, "weight")
    result = tune_on_validation(laplace, [(x_valid, y_valid, None)])
    assert set(result.scales) == {"temperature"}
    assert likelihood.temperature.item() == pytest.approx(2.0 * result.scales["temperature"])
    assert prior.precision.item() == pytest.approx(0.7)
    assert not result.at_boundary
    best = is_optimum(laplace, x_valid, y_valid, result.scales)
    assert best == pytest.approx(result.value, rel=1e-8)


@pytest.mark.parametrize("mean", MEANS)
def test_results_dont_depend_on_memory_or_batches(mean, monkeypatch):
    net, x, y, x_valid, y_valid = problem(CASES[1], lambda: Gaussian(0.2))
    weights = torch.linspace(0.5, 2.0, len(x_valid), dtype=torch.float64)
    found = []
    for small in (False, True):
        laplace = make_laplace(
            net, x, y, Isotropic(0.7), Gaussian(0.2), "function", mean,
            keep_bytes=0 if small else 1 << 30, chunk_bytes=1000 if small else 1 << 27,
        )  # fmt: skip
        monkeypatch.setattr("lingp.inference.tuning.spectrum._KEPT_SHARE", 0.0 if small else 0.25)
        parts = zip(
            *(t.split(7 if small else 20) for t in (x_valid, y_valid, weights)), strict=True
        )
        result = tune_on_validation(laplace, parts)
        assert result.value == pytest.approx(
            predictive_density(laplace, x_valid, y_valid, weights), rel=1e-8
        )
        found.append((result.value, *result.scales.values()))
    assert found[0] == pytest.approx(found[1], rel=1e-8)


def test_an_optimum_at_the_edge_is_reported():
    net, x, y, x_valid, _ = problem(CASES[1], lambda: Gaussian(0.2))
    y_valid = net(x_valid).detach()  # no uncertainty at all is best
    prior = Isotropic(0.7)
    laplace = make_laplace(net, x, y, prior, Gaussian(0.2), "function")
    laplace.likelihood.raw_noise.requires_grad_(False)
    with pytest.warns(BoundaryWarning, match="edge.*span"):
        result = tune_on_validation(laplace, [(x_valid, y_valid, None)], span=100.0)
    assert result.at_boundary
    assert result.scales["prior variances"] == pytest.approx(0.01)
    assert prior.precision.item() == pytest.approx(70.0)


@pytest.mark.parametrize("make", [lambda: Gaussian(0.2), Bernoulli])
def test_factors_have_to_be_worth_their_change(make):
    """With a log-normal density of the factors, what counts is the product of both."""
    net, x, y, x_valid, y_valid = problem(CASES[1], make)

    def laplace():
        return make_laplace(net, x, y, Isotropic(0.7), make(), "function")

    def penalty(scales, typical):
        return sum(0.5 * (math.log(f) / math.log(typical)) ** 2 for f in scales)

    batches = [(x_valid, y_valid, None)]
    free, model = tune_on_validation(laplace(), batches), laplace()
    bound = tune_on_validation(model, batches, typical_factor=1.5)
    best = predictive_density(model, x_valid, y_valid)
    assert bound.value == pytest.approx(best, rel=1e-8)  # of the rows alone
    assert bound.initial_value < bound.value < free.value
    best -= penalty(bound.scales.values(), 1.5)
    for name in bound.scales:
        for move in (0.95, 1 / 0.95):
            moved = {k: f * move if k == name else f for k, f in bound.scales.items()}
            model.prior.precision = 0.7 / moved["prior variances"]
            if "noise" in moved:
                model.likelihood.noise = 0.2 * moved["noise"]
            density = predictive_density(model, x_valid, y_valid)
            assert density - penalty(moved.values(), 1.5) <= best + 1e-9 * abs(best)
    held = tune_on_validation(laplace(), batches, typical_factor=1.001).scales
    assert all(abs(f - 1) < 1e-3 for f in held.values())


def test_bad_input_is_named():
    net, x, y, x_valid, y_valid = problem(CASES[1], lambda: Gaussian(0.2))
    laplace = make_laplace(net, x, y, Layerwise(0.7), Gaussian(0.2), "function")
    with pytest.raises(ValueError, match="batches: gave no batches"):
        tune_on_validation(laplace, [])
    with pytest.raises(ValueError, match="span"):
        tune_on_validation(laplace, [(x_valid, y_valid, None)], span=0.5)
    with pytest.raises(ValueError, match="typical_factor: expected a factor larger than 1"):
        tune_on_validation(laplace, [(x_valid, y_valid, None)], typical_factor=1.0)
    before = laplace.prior.precision.detach().clone()
    y_valid[0] = math.inf
    with pytest.raises(ValueError, match=r"not finite.*nothing was changed"):
        tune_on_validation(laplace, [(x_valid, y_valid, None)])
    assert torch.equal(laplace.prior.precision, before)
    laplace.prior.raw_precision.requires_grad_(False)
    laplace.likelihood.raw_noise.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to tune"):
        tune_on_validation(laplace, [(x_valid, y_valid, None)])


@pytest.mark.parametrize("mean", MEANS)
def test_a_network_that_is_right_to_a_millionth_is_no_worse_than_alone(mean):
    """The search goes on past its first edge: to no doubt and the noise that the rows have."""
    net, x, _, x_valid = CASES[1].build(12, 15)
    generator = torch.Generator().manual_seed(2)
    y, y_valid = (
        net(z).detach() + 1e-6 * torch.randn(len(z), 3, dtype=z.dtype, generator=generator)
        for z in (x, x_valid)
    )
    laplace = make_laplace(net, x, y, Isotropic(1.0), Gaussian(1.0), "function", mean)
    result = tune_on_validation(laplace, [(x_valid, y_valid, None)])
    left = (y_valid - net(x_valid)).square().mean().item()
    alone = -0.5 * y_valid.numel() * (math.log(2 * math.pi * left) + 1)
    if mean == "network":
        # 1e-12 of the prior's variance is left, of the order of the noise's
        assert result.value > alone - 0.1 * y_valid.numel()
    assert result.value > result.initial_value
