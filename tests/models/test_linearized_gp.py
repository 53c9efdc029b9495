"""The front door: what it returns, and what it leaves alone."""

from __future__ import annotations

import copy
import itertools

import gpytorch
import pytest
import torch
from torch import nn

from lingp.inference import FunctionSpace, WeightSpace
from lingp.likelihoods import Gaussian
from lingp.models import LinearizedGP
from lingp.priors import Isotropic, Layerwise

SPACES = ["weight_space", "function_space"]


def make_net(num_outputs=3, squeeze=False, dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, num_outputs)]
        if squeeze:
            layers.append(nn.Flatten(0))
        return nn.Sequential(*layers).to(dtype)


def make_data(num_data=15, num_outputs=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_data, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(num_data, num_outputs, generator=generator, dtype=torch.float64)
    return x, y


# Ridge regression: a linear network is its own linearisation -----------------------------------


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize("num_data", [3, 40])
def test_linear_network_is_ridge_regression(space, mean, num_data):
    """Bayesian linear regression in closed form; the network sits at the ridge solution."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_data, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(num_data, 1, generator=generator, dtype=torch.float64)
    x_test = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    precision, noise = 0.5, 0.3
    identity = torch.eye(4, dtype=torch.float64)
    posterior_precision = precision * identity + x.mT @ x / noise
    weights = torch.linalg.solve(posterior_precision, x.mT @ y / noise)
    covariance = x_test @ torch.linalg.solve(posterior_precision, x_test.mT)
    total = noise * torch.eye(num_data, dtype=torch.float64) + x @ x.mT / precision
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(y[:, 0]), total)

    net = nn.Linear(4, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(weights.mT)
    if mean == "refit":  # then it doesn't matter where the network sits
        with torch.no_grad():
            net.weight.add_(1.0)
    gp = LinearizedGP(net, Gaussian(noise), prior=precision, inference=space, mean=mean).fit(x, y)
    close = torch.testing.assert_close
    posterior = gp.posterior(x_test)
    close(posterior.mean, (x_test @ weights).squeeze(1), rtol=1e-8, atol=1e-10)
    close(posterior.covariance_matrix, covariance, rtol=1e-8, atol=1e-10)
    close(gp.log_marginal_likelihood(), evidence.log_prob(y[:, 0]), rtol=1e-8, atol=0)
    prediction = gp.predict(x_test)
    close(prediction.variance.squeeze(1), covariance.diagonal() + noise, rtol=1e-8, atol=0)


# Shapes and agreement ---------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("mean", ["network", "refit"])
def test_predict_is_the_marginal_of_posterior(space, mean):
    x, y = make_data()
    x_test, y_test = make_data(9, seed=1)
    gp = LinearizedGP(make_net(), Gaussian(0.1), inference=space, mean=mean).fit(x, y)
    joint, prediction = gp.posterior(x_test), gp.predict(x_test)
    assert isinstance(joint, gpytorch.distributions.MultitaskMultivariateNormal)
    assert joint.mean.shape == (9, 3)
    close = torch.testing.assert_close
    close(prediction.mean, joint.mean)
    close(prediction.epistemic_variance, joint.variance)
    close(prediction.aleatoric_variance, torch.full((9, 3), 0.1, dtype=torch.float64))
    close(prediction.variance, joint.variance + 0.1)
    # interleaved: rows n·C + c
    blocks = torch.einsum("ncnd->ncd", joint.covariance_matrix.view(9, 3, 9, 3))
    total = blocks + 0.1 * torch.eye(3, dtype=torch.float64)
    exact = torch.distributions.MultivariateNormal(joint.mean, total)
    close(prediction.log_prob(y_test), exact.log_prob(y_test))
    assert (joint.mean == gp.linearized(x_test)).all() == (mean == "network")


@pytest.mark.parametrize("space", SPACES)
def test_predictions_dont_depend_on_the_memory_budget(space):
    x, y = make_data()
    x_test, _ = make_data(50, seed=1)
    results = []
    for budget in (None, 150_000):
        gp = LinearizedGP(make_net(), inference=space, memory_budget=budget).fit(x, y)
        latents = gp._latents()
        batches = list(latents.batches(x_test, latents.laplace.posterior(), False))
        assert (len(batches) > 5) == (budget is not None)
        prediction = gp.predict(x_test)
        draws = gp.sample(x_test, 4, generator=torch.Generator().manual_seed(0))
        results.append((prediction.mean, prediction.variance, draws))
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("net", "target_shape", "output_shape"),
    [
        (make_net(1), (15,), (1,)),
        (make_net(1), (15, 1), (1,)),
        (make_net(1, squeeze=True), (15,), ()),
        (make_net(1, squeeze=True), (15, 1), ()),
        (make_net(3), (15, 3), (3,)),
        (nn.Sequential(make_net(6), nn.Unflatten(1, (2, 3))), (15, 2, 3), (2, 3)),
    ],
)
def test_results_have_the_shape_of_the_networks_output(net, target_shape, output_shape):
    x, y = make_data(num_outputs=6)
    y = y.flatten()[: torch.Size(target_shape).numel()].reshape(target_shape)
    gp = LinearizedGP(net).fit(x, y)
    prediction = gp.predict(x)
    shape = (15, *output_shape)
    lower, upper = prediction.interval(0.9)
    for value in (
        prediction.mean,
        prediction.variance,
        prediction.stddev,
        prediction.epistemic_variance,
        prediction.aleatoric_variance,
        prediction.sample(),
        lower,
        upper,
    ):
        assert value.shape == shape
        assert value.dtype == torch.float64
    assert prediction.sample(4).shape == (4, *shape)
    assert prediction.log_prob(y).shape == (15,)
    assert gp.sample(x, 4).shape == (4, *shape)
    assert str(output_shape) in repr(prediction)
    posterior = gp.posterior(x)
    flat = torch.Size(output_shape).numel()
    assert posterior.mean.shape == ((15,) if flat == 1 else (15, flat))
    assert type(posterior) is (
        gpytorch.distributions.MultivariateNormal
        if flat == 1
        else gpytorch.distributions.MultitaskMultivariateNormal
    )


@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("mean", ["network", "refit"])
def test_spaces_agree_through_the_front_door(mean, per_output):
    x, y = make_data()
    noise = [0.1, 0.2, 0.3] if per_output else 0.1
    results = []
    for space in SPACES:
        prior = Layerwise(0.5) if per_output else Isotropic(0.5)
        gp = LinearizedGP(make_net(), Gaussian(noise), prior=prior, inference=space, mean=mean)
        gp.fit(x, y)
        assert gp.inference_choice.space == space
        evidence = gp.log_marginal_likelihood()
        assert evidence.dim() == 0
        names, parameters = zip(*gp.named_hyperparameters(), strict=True)
        assert names == ("prior.raw_precision", "likelihood.raw_noise")
        gradients = torch.autograd.grad(evidence, parameters)
        prediction = gp.predict(x)
        results.append((evidence, *gradients, prediction.mean, prediction.variance))
    for weight, function in zip(*results, strict=True):
        torch.testing.assert_close(weight, function, rtol=1e-8, atol=1e-10)


# Samples ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("mean", ["network", "refit"])
def test_function_samples_have_the_posterior_moments(space, mean):
    x, y = make_data()
    x_test, _ = make_data(4, seed=1)
    gp = LinearizedGP(make_net(), Gaussian(0.1), inference=space, mean=mean).fit(x, y)
    count = 20_000
    draws = gp.sample(x_test, count, generator=torch.Generator().manual_seed(0)).flatten(1)
    posterior = gp.posterior(x_test)
    covariance, center = posterior.covariance_matrix, posterior.mean.flatten()
    variance = covariance.diagonal()
    assert ((draws.mean(0) - center).abs() / (variance / count).sqrt()).max() < 5
    found = (draws - center).mT @ (draws - center) / count
    error = ((variance.outer(variance) + covariance.square()) / count).sqrt()
    assert ((found - covariance).abs() / error).max() < 5


def test_a_generator_makes_samples_repeatable_and_leaves_the_global_one_alone():
    x, y = make_data()
    gp = LinearizedGP(make_net()).fit(x, y)
    state = torch.get_rng_state()
    one, two = (gp.sample(x, 3, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    three, four = (
        gp.predict(x).sample(3, generator=torch.Generator().manual_seed(1)) for _ in range(2)
    )
    assert torch.equal(one, two)
    assert torch.equal(three, four)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("space", SPACES)
def test_rank_deficient_posteriors_can_be_sampled(space, num_outputs):
    """More rows than weights, and rows that repeat: the covariance is singular."""
    x, y = make_data(num_outputs=num_outputs)
    gp = LinearizedGP(make_net(num_outputs), Gaussian(0.1), inference=space).fit(x, y)
    grid = torch.linspace(-2, 2, 40, dtype=torch.float64).repeat(2)
    x_test = torch.stack([grid, grid.sin()], 1)
    assert len(x_test) * num_outputs > gp.linearized.num_parameters
    posterior = gp.posterior(x_test)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = posterior.rsample(torch.Size([4000]))
        base = posterior.get_base_samples(torch.Size([5]))
        from_base = posterior.rsample(torch.Size([5]), base_samples=base)
    assert torch.isfinite(draws).all()
    assert from_base.shape == (5, *posterior.mean.shape)
    # repeated rows are one value of the function (their jitter is rounding)
    assert (draws[:, :40] - draws[:, 40:]).abs().max() < 1e-5
    ratio = draws.var(0) / posterior.variance
    assert (ratio - 1).abs().max() < 5 * (2 / 4000) ** 0.5


# Hyperparameters --------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [Isotropic, Layerwise])
def test_optimize_raises_the_evidence_and_reaches_predictions(prior):
    x, y = make_data(40)
    gp = LinearizedGP(make_net(), Gaussian(5.0), prior=prior(30.0)).fit(x, y)
    before = gp.log_marginal_likelihood().item()
    old = gp.predict(x).variance
    result = gp.optimize_hyperparameters()
    assert result.converged
    assert result.initial_log_marginal_likelihood == pytest.approx(before)
    assert gp.log_marginal_likelihood().item() == pytest.approx(result.log_marginal_likelihood)
    assert result.log_marginal_likelihood > before + 1
    aleatoric = gp.predict(x).aleatoric_variance
    assert torch.equal(aleatoric, gp.likelihood.noise.expand(40, 3))
    assert not torch.allclose(gp.predict(x).variance, old)


def test_changing_anything_after_fit_is_seen_at_once():
    x, y = make_data()
    net = make_net()
    gp = LinearizedGP(net, Gaussian(0.1), mean="refit").fit(x, y)
    changes = (
        lambda gp: setattr(gp.likelihood, "noise", 0.5),
        lambda gp: setattr(gp.prior, "precision", 7.0),
        lambda gp: gp.likelihood.raw_noise.data.add_(0.1),
        lambda gp: setattr(gp, "likelihood", Gaussian([0.1, 0.2, 0.3])),
        lambda gp: setattr(gp, "prior", Layerwise(2.0)),
    )
    for change in changes:
        gp.predict(x)
        change(gp)
        fresh = LinearizedGP(net, gp.likelihood, prior=gp.prior, mean="refit").fit(x, y)
        for made, expected in ((gp.predict(x), fresh.predict(x)),):
            torch.testing.assert_close(made.mean, expected.mean, rtol=1e-12, atol=0)
            torch.testing.assert_close(made.variance, expected.variance, rtol=1e-12, atol=0)
        torch.testing.assert_close(gp.log_marginal_likelihood(), fresh.log_marginal_likelihood())


def test_fitting_again_replaces_the_data():
    net = make_net()
    first, second = make_data(), make_data(8, seed=3)
    gp = LinearizedGP(net).fit(*first)
    gp.predict(first[0])
    gp.fit(*second)
    fresh = LinearizedGP(net).fit(*second)
    assert torch.equal(gp.predict(first[0]).variance, fresh.predict(first[0]).variance)


# What is left alone -----------------------------------------------------------------------------


def test_the_users_network_and_torchs_state_are_untouched():
    x, y = make_data()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Linear(2, 6),
            nn.BatchNorm1d(6),
            nn.Dropout(0.5),
            nn.ReLU(inplace=True),
            nn.Linear(6, 3),
        )
    net.train()
    net(x.float()).sum().backward()
    before = copy.deepcopy(net.state_dict())
    grads = [p.grad.clone() for p in net.parameters()]
    rng, default = torch.get_rng_state(), torch.get_default_dtype()
    dataset = torch.utils.data.TensorDataset(x.float(), y.float())
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True)
    for data in (dataset, loader):
        gp = LinearizedGP(net).fit(data)
        gp.optimize_hyperparameters()
        gp.predict(x)
        gp.posterior(x)
    assert net.training
    assert all(m.training for m in net.modules())
    assert all(p.requires_grad and p.dtype == torch.float32 for p in net.parameters())
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    for p, grad in zip(net.parameters(), grads, strict=True):
        assert torch.equal(p.grad, grad)
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.get_default_dtype() == default
    assert torch.is_grad_enabled()


def test_computation_runs_in_dtype_whatever_the_networks():
    x, y = make_data()
    exact = LinearizedGP(make_net(), Gaussian(0.1)).fit(x, y)
    net = make_net(dtype=torch.float32).double().float()
    upcast = LinearizedGP(net, Gaussian(0.1)).fit(x.float(), y.float())
    single = LinearizedGP(net, Gaussian(0.1), dtype=torch.float32).fit(x, y)
    assert upcast.predict(x).mean.dtype == torch.float64
    assert single.predict(x).mean.dtype == torch.float32
    close = torch.testing.assert_close
    close(upcast.predict(x).variance, exact.predict(x).variance, rtol=1e-5, atol=0)
    close(single.predict(x).variance.double(), exact.predict(x).variance, rtol=1e-3, atol=0)


def test_evidence_has_a_graph_only_when_asked():
    x, y = make_data()
    gp = LinearizedGP(make_net()).fit(x, y)
    with torch.no_grad():
        value = gp.log_marginal_likelihood()
    assert not value.requires_grad
    assert gp.log_marginal_likelihood().requires_grad
    assert not gp.predict(x).variance.requires_grad


# The choice, and errors at the door ---------------------------------------------------------------


def test_the_choice_is_explained():
    x, y = make_data()
    gp = LinearizedGP(make_net())
    assert "not fitted" in repr(gp)
    gp.fit(x, y)
    assert "function space" in str(gp.inference_choice) or "weight space" in str(
        gp.inference_choice
    )
    assert str(gp.inference_choice) in repr(gp)
    assert "Isotropic(precision=1)" in repr(gp)
    few, many = make_data(4), make_data(400)
    assert LinearizedGP(make_net()).fit(*few).inference_choice.space == "function_space"
    assert LinearizedGP(make_net()).fit(*many).inference_choice.space == "weight_space"


def test_an_inference_object_is_called():
    x, y = make_data()
    calls = itertools.count()

    class Mine:
        def __call__(self, training, prior, root):
            next(calls)
            return WeightSpace(training, prior, root)

    gp = LinearizedGP(make_net(), inference=Mine()).fit(x, y)
    expected = LinearizedGP(make_net(), inference=FunctionSpace).fit(x, y)
    torch.testing.assert_close(gp.predict(x).variance, expected.predict(x).variance)
    assert next(calls) == 1
    assert "Mine" in str(gp.inference_choice)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mean": "map"}, ValueError, r"mean.*network.*refit.*'map'"),
        ({"inference": "magic"}, ValueError, r"inference.*weight_space.*'magic'"),
        ({"dtype": torch.float16}, ValueError, r"dtype.*float16"),
        ({"prior": "wide"}, TypeError, r"prior.*str"),
        ({"prior": -1.0}, ValueError, r"precision.*-1"),
        ({"likelihood": "normal"}, ValueError, r"likelihood.*'gaussian'"),
        ({"memory_budget": 0}, ValueError, r"memory_budget"),
        ({"parameters": "nothing*"}, ValueError, r"parameters"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        LinearizedGP(make_net(), **arguments)


def test_using_before_fit_says_what_to_do():
    x, _ = make_data()
    gp = LinearizedGP(make_net())
    for call in (
        lambda: gp.predict(x),
        lambda: gp.posterior(x),
        lambda: gp.sample(x),
        gp.log_marginal_likelihood,
        gp.optimize_hyperparameters,
        lambda: gp.inference_choice,
    ):
        with pytest.raises(RuntimeError, match=r"call fit\(X, y\) first"):
            call()


def test_too_little_memory_is_an_error_with_numbers():
    x, y = make_data(400)
    with pytest.raises(MemoryError, match=r"needs more than the 1 kB.*last_layer"):
        LinearizedGP(make_net(), memory_budget=1000).fit(x, y)


def test_a_prior_mean_of_the_wrong_size_is_refused():
    x, y = make_data()
    with pytest.raises(ValueError, match=r"prior: its mean has shape \(3,\).*39 weights"):
        LinearizedGP(make_net(), prior=Isotropic(mean=torch.zeros(3))).fit(x, y)


def test_prediction_refuses_wrong_targets_and_levels():
    x, y = make_data()
    prediction = LinearizedGP(make_net()).fit(x, y).predict(x)
    with pytest.raises(ValueError, match=r"y: has shape \(N, 1\)"):
        prediction.log_prob(y[:, :1])
    with pytest.raises(ValueError, match="15 rows predicted"):
        prediction.log_prob(y[:4])
    for level in (0.0, 1.0, 90):
        with pytest.raises(ValueError, match="level"):
            prediction.interval(level)
    with pytest.raises(ValueError, match="num_samples"):
        prediction.sample(0)
