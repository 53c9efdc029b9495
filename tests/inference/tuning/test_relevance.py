"""Automatic relevance determination: fixed points of many precisions at once."""

from __future__ import annotations

import math
import warnings

import gpytorch
import pytest
import torch
from laplace_cases import CASES, hyperparameters, make_laplace
from torch import nn

from lingp import LinearizedGP
from lingp.inference import optimize
from lingp.likelihoods import Gaussian
from lingp.priors import Diagonal, Isotropic, Layerwise, UnitWise
from lingp.training import effective_parameters


def effective_numbers(laplace):
    """γ of each precision, in the shape of `prior.raw_precision`: how much the data determine."""
    raw = laplace.prior.raw_precision
    wanted = raw.requires_grad
    raw.requires_grad_(True)
    with torch.enable_grad():
        log_determinant = laplace.solution().occam.log_determinant()
        slopes = torch.autograd.grad(log_determinant, raw)[0]
        # raw values need not be logarithms
        by_raw = torch.autograd.grad(laplace.prior.precision.log().sum(), raw)[0]
    raw.requires_grad_(wanted)
    return -slopes / by_raw


def linear_data(seed):
    """Eight inputs of which three matter."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(40, generator=generator, dtype=torch.float64)
    return x, (x[:, :3] @ torch.tensor([1.5, -1.0, 0.5]).double() + 0.3 * noise).unsqueeze(1)


def relevance_vector_machine(x, y):
    """Precisions, noise and γ by the fixed point as Tipping (2001, equations 16-18) writes it."""
    y = y[:, 0]
    precision, noise = torch.ones(x.shape[1]).double(), torch.tensor(0.1).double()
    for _ in range(2000):
        covariance = torch.linalg.inv(torch.diag(precision) + x.mT @ x / noise)
        mean = covariance @ x.mT @ y / noise
        gamma = 1 - precision * covariance.diagonal()
        precision = (gamma / mean.square()).clamp(max=1e14)
        noise = (y - x @ mean).square().sum() / (len(y) - gamma.sum())
    return precision, noise, gamma


@pytest.mark.parametrize(("seed", "space"), [(1, "weight"), (5, "function")])
def test_a_linear_model_is_a_relevance_vector_machine(seed, space):
    x, y = linear_data(seed)
    precision, noise, gamma = relevance_vector_machine(x, y)
    prior, likelihood = Diagonal(torch.ones(8)), Gaussian(0.1)
    net = nn.Linear(8, 1, bias=False).double()
    laplace = make_laplace(net, x, y, prior, likelihood, space, "refit")
    prior.precision = 1.0
    result = optimize(laplace, method="mackay", tolerance=1e-9)
    assert result.converged
    on = precision < 1e10
    assert 3 <= int(on.sum()) < 8
    found = prior.precision.detach()
    torch.testing.assert_close(found[on], precision[on], rtol=1e-5, atol=0)
    assert likelihood.noise.item() == pytest.approx(noise.item(), rel=1e-6)
    numbers = effective_numbers(laplace)
    torch.testing.assert_close(numbers[on], gamma[on], rtol=1e-5, atol=0)
    # what is switched off: no share in the mean, none of the data's information
    assert float(numbers[~on].max()) < 1e-5
    moved = laplace.prior_deviation() + nn.utils.parameters_to_vector(net.parameters())
    weights = moved.detach() + (laplace.weight_shift() - laplace.prior_deviation())
    assert float(weights[~on].abs().max()) < 1e-4 * float(weights.abs().max())


def test_irrelevant_inputs_of_a_network():
    """Precisions of input units order the inputs by what they are worth."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=generator, dtype=torch.float64)
    y = (2 * x[:, :1]).sin() + 0.3 * x[:, 1:2]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1)).double()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=1e-3)
    for _ in range(150):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
    gp = LinearizedGP(net, Gaussian(0.01), prior=UnitWise(units="inputs")).fit(x, y, progress=False)
    gp.optimize_hyperparameters(method="mackay")
    precisions = gp.prior.named_precisions()["0.weight"].detach()
    assert int(precisions.argmin()) == 0
    assert float(precisions[2:].min()) > 2 * float(precisions[0])


@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize("kind", ["inputs/scalar", "outputs/per-output", "diagonal/scalar"])
def test_effective_numbers(kind, mean):
    net, x, y, _ = CASES[3].build()
    prior, likelihood = hyperparameters(kind, 3)
    found = []
    for space in ("weight", "function"):
        laplace = make_laplace(net, x, y, prior, likelihood, space, mean)
        numbers = effective_numbers(laplace)
        sizes = torch.bincount(prior.group)
        assert bool((numbers > 0).all())
        assert bool((numbers < sizes).all())
        found.append(numbers)
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)
    posterior = laplace.posterior()
    values = torch.linalg.eigvalsh(
        posterior.factorization.factor @ posterior.factorization.factor.mT
    )
    assert float(found[0].sum()) == pytest.approx(float((1 - 1 / values).sum()), rel=1e-9)
    gp = LinearizedGP(net, likelihood, prior=prior, mean=mean).fit(x, y, progress=False)
    assert float(found[0].sum()) == pytest.approx(effective_parameters(gp), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_that_say_nothing(dtype):
    """Weights at zero, and weights the outputs don't depend on: bounded, and no NaN ever."""
    net, x, y, x_test = CASES[1].build(num_data=25)  # 3 - 5 - 3
    with torch.no_grad():
        net[0].weight[:, 1] = 0.0  # at the prior's mean: off
        net[0].weight[:, 2] = 1e-30
        net[2].weight[:, 0] = 0.0  # the first hidden unit is heard of by nothing
    for mean in ("network", "refit"):
        prior, likelihood = UnitWise(torch.ones(10), units="inputs"), Gaussian(0.1)
        gp = LinearizedGP(net, likelihood, prior=prior, mean=mean, dtype=dtype)
        gp.fit(x, y, progress=False)
        for _ in range(3):  # as in training: what is off doesn't go further
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = gp.optimize_hyperparameters(method="mackay", max_evaluations=30)
        assert math.isfinite(result.value)
        assert bool(torch.isfinite(prior.raw_precision).all())
        off = prior.named_precisions()["0.weight"].detach()
        if mean == "network":
            bound = torch.finfo(dtype).eps ** 0.5
            numbers = effective_numbers(gp.laplace)
            assert 0 <= float(numbers[1]) < bound
            assert 1e3 < float(off[1]) < 1e16
        for values in (gp.predict(x_test).variance, gp.log_marginal_likelihood()):
            assert bool(torch.isfinite(values).all())


def test_precision_of_weights_that_outputs_dont_depend_on():
    """Only the prior speaks: its variance grows until it says nothing, and stops there."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        net[0].bias[0], net[0].weight[0] = -100.0, 0.1  # dead
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20, 3, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True)
    prior = UnitWise(torch.ones(10), units="outputs")
    gp = LinearizedGP(net, Gaussian(0.1), prior=prior).fit(x, y, progress=False)
    for _ in range(3):
        assert gp.optimize_hyperparameters(method="mackay", tolerance=1e-9).converged
    dead = float(prior.named_precisions()["0.weight"][0].detach())
    assert 1e-16 < dead < 1e-5
    assert float(effective_numbers(gp.laplace)[0]) == 0.0


@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize("space", ["weight", "function"])
def test_equal_precisions_are_one(space, mean):
    """Units that share a value are a layer, weights that share one are isotropic."""
    net, x, y, _ = CASES[3].build()

    def evidence(prior):
        laplace = make_laplace(net, x, y, prior, Gaussian(0.2), space, mean)
        value = laplace.log_marginal_likelihood()
        return value.item(), torch.autograd.grad(value, prior.raw_precision)[0]

    layers = Layerwise(0.7)
    wanted, slopes = evidence(layers)  # make_laplace sets its precisions apart
    named = dict(zip(layers.names, layers.precision.tolist(), strict=True))
    for units in ("inputs", "outputs"):
        prior = UnitWise(named, units)
        value, slope = evidence(prior)
        assert value == pytest.approx(wanted, rel=1e-12)
        counts = [p.numel() for p in prior.named_precisions().values()]
        sums = torch.stack([part.sum() for part in slope.split(counts)])
        torch.testing.assert_close(sums, slopes, rtol=1e-9, atol=1e-10)
    wanted, slopes = evidence(Isotropic(0.7))
    size = sum(p.numel() for p in net.parameters())
    prior = Diagonal(torch.full((size,), 0.7), mean=0.0)
    laplace = make_laplace(net, x, y, prior, Gaussian(0.2), space, mean)
    prior.precision = 0.7  # make_laplace has set them apart
    value = laplace.log_marginal_likelihood()
    assert value.item() == pytest.approx(wanted, rel=1e-12)
    slope = torch.autograd.grad(value, prior.raw_precision)[0]
    torch.testing.assert_close(slope.sum(), slopes, rtol=1e-9, atol=1e-10)


def test_auto_takes_fixed_points_for_many_precisions():
    net, x, y, _ = CASES[3].build(num_data=20)

    def method(prior, **options):
        gp = LinearizedGP(net, Gaussian(0.1), prior=prior).fit(x, y, progress=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gp.optimize_hyperparameters(max_evaluations=10, **options)

    assert method(Diagonal()).method == "MacKay"
    assert method(UnitWise()).method == "L-BFGS"  # 16 precisions
    assert method(Diagonal(), method="l-bfgs").num_starts == 1
    assert method(Diagonal(), num_restarts=1).method == "L-BFGS"
    prior = Diagonal()
    prior.register_prior("shrinkage", gpytorch.priors.GammaPrior(2.0, 1.0), "precision")
    found = method(prior)
    assert (found.method, found.num_starts) == ("L-BFGS", 1)


def test_hyperpriors_count():
    """The gradient of MAP-II has the hyperprior's part, on precisions and on raw values."""
    net, x, y, _ = CASES[1].build(num_data=20)
    for where in ("precision", "raw_precision"):
        prior = UnitWise(units="inputs")
        density = gpytorch.priors.GammaPrior(20.0, 10.0)
        if where == "raw_precision":
            density = gpytorch.priors.NormalPrior(math.log(2.0), 0.05)
        prior.register_prior("hyper", density, where)
        gp = LinearizedGP(net, Gaussian(0.1), prior=prior).fit(x, y, progress=False)
        assert gp.optimize_hyperparameters(num_restarts=0).converged
        free = UnitWise(units="inputs")
        LinearizedGP(net, Gaussian(0.1), prior=free).fit(
            x, y, progress=False
        ).optimize_hyperparameters(num_restarts=0, method="mackay")
        spread = [float(p.precision.detach().log().std()) for p in (prior, free)]
        assert spread[0] < 0.6 * spread[1]
