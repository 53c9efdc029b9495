"""A model from data alone, and from a scikit-learn estimator."""

import math

import numpy as np
import pytest
import torch

import lingp
from lingp import LinearizedGPRegressor
from lingp.likelihoods import Gaussian, KnownNoiseGaussian

pytest.importorskip("botorch", reason="BoTorch is not installed")

from botorch.models.transforms import Standardize

from lingp.integrations.botorch import LinearizedGPModel, fit_linearized_gp
from lingp.integrations.botorch.waves import Waves, learn_scales

BOUNDS = torch.tensor([[-5.0, 0], [10, 15]], dtype=torch.float64)


def data(n=15, seed=0):
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    X = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * unit
    return X, 1000 + 50 * (4 * unit).sin().sum(1, keepdim=True)


def network(outputs=1):
    first, last = torch.nn.Linear(2, 20), torch.nn.Linear(20, outputs)
    net = torch.nn.Sequential(first, torch.nn.Tanh(), last).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return net


@pytest.mark.parametrize("trained", [False, True])
def test_it_predicts_in_the_units_of_the_data(trained):
    X, Y = data(40)
    options = {"net": network(), "steps": 300} if trained else {}
    model = fit_linearized_gp(X, Y, bounds=BOUNDS, **options)
    at, truth = data(200, seed=1)
    posterior = model.posterior(at)
    error = (posterior.mean - truth).square().mean().sqrt()
    assert error < (0.3 if trained else 0.1) * truth.std()
    z = (posterior.mean - truth) / model.posterior(at, observation_noise=True).variance.sqrt()
    assert (z.abs() < 3).double().mean() > 0.9


@pytest.mark.parametrize(("net", "side"), [(None, 1.0), (network(), 12**0.5)])
def test_inputs_are_mapped_by_their_bounds(net, side):
    X, Y = data()
    corners = torch.tensor([[-0.5, -0.5], [0.5, 0.5]], dtype=torch.float64) * side
    transform = fit_linearized_gp(X, Y, bounds=BOUNDS, net=net, steps=1).input_transform
    torch.testing.assert_close(transform(BOUNDS), corners)
    own = fit_linearized_gp(X, Y, net=net, steps=1).input_transform
    ends = torch.stack([X.amin(0), X.amax(0)])
    torch.testing.assert_close(own(ends), corners)


def test_another_transform_learns_and_is_copied():
    X, Y = data()
    outcomes = Standardize(1)
    model = fit_linearized_gp(X, Y, outcome_transform=outcomes)
    assert not outcomes._is_trained
    torch.testing.assert_close(model.outcome_transform.means, Y.mean(0, keepdim=True))


@pytest.mark.parametrize("trained", [False, True])
def test_known_noise_and_several_outputs(trained):
    X, Y = data()
    Y = torch.cat([Y, -2 * Y], 1)
    Yvar = torch.rand(15, 2, generator=torch.Generator().manual_seed(0)).double() + 0.5
    options = {"net": network(2), "steps": 20} if trained else {}
    model = fit_linearized_gp(X, Y, Yvar, **options)
    assert model.num_outputs == 2
    assert isinstance(model.gp.likelihood, KnownNoiseGaussian)
    known = model.gp.laplace.training.targets[..., 1]
    torch.testing.assert_close(known * Y.var(0), Yvar)
    posterior = model.posterior(X, observation_noise=True)
    added = posterior.variance - model.posterior(X).variance
    torch.testing.assert_close(added, Yvar.mean(0).expand(15, 2))
    learned = fit_linearized_gp(X, Y, **options).gp.likelihood.noise
    assert learned.shape == (2,)


def standard(X, Y):
    return (X - BOUNDS.mean(0)) / (BOUNDS[1] - BOUNDS[0]), (Y - Y.mean(0)) / Y.std(0)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_scales_have_the_largest_evidence_times_priors(outputs):
    """At the optimum, by the evidence of the GP itself: no step of a hyperparameter is better."""
    X, Y = data()
    x, y = standard(X, torch.cat([Y, Y.square() + 9 * X[:, :1]], 1)[:, :outputs])
    net = Waves(2, outputs, torch.Generator().manual_seed(0), units=30)
    found = learn_scales(net, x, y, None)
    typical = 2**0.5 + 0.5 * math.log(2)
    lengths = torch.distributions.LogNormal(typical, 3**0.5)
    noises = torch.distributions.LogNormal(-4.0, 1.0)

    def objective(scale, precision, noise):
        net.scale.copy_(scale)
        gp = lingp.LinearizedGP(
            net,
            Gaussian(noise if outputs > 1 else noise[0]),
            prior=precision,
            parameters="last_layer",
            mean="refit",
        )
        evidence = gp.fit(x, y, progress=False).log_marginal_likelihood().detach()
        return float(evidence + lengths.log_prob(1 / scale).sum() + noises.log_prob(noise).sum())

    best = objective(found.scale, found.precision, found.noise)
    for factor in (0.9, 1.1):
        for place in range(2):
            scale = found.scale.clone()
            scale[place] *= factor
            assert objective(scale, found.precision, found.noise) < best + 1e-3
        assert objective(found.scale, found.precision * factor, found.noise) < best + 1e-3
        for place in range(outputs):
            noise = found.noise.clone()
            noise[place] = 1e-4 + (noise[place] - 1e-4) * factor
            assert objective(found.scale, found.precision, noise) < best + 1e-3


def test_the_kernel_is_near_a_squared_exponential():
    """Plus a constant, units / 2 times each; to 3 standard errors of random features."""
    units = 4000
    net = Waves(2, 1, torch.Generator().manual_seed(0), units=units)
    net.scale.copy_(torch.tensor([1.0, 3.0]))
    x = standard(*data(8))[0]
    kernel = lingp.NTKernel.from_model(net, "last_layer")(x).to_dense() / units
    distance = (x[:, None] - x[None]) * net.scale
    expected = 0.5 + 0.5 * (-0.5 * distance.square().sum(-1)).exp()
    torch.testing.assert_close(kernel, expected, rtol=0, atol=3 * 0.5 / units**0.5)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("trained", [False, True])
def test_few_points_and_constant_values(n, trained):
    X, _ = data(n)
    options = {"net": network(), "steps": 10} if trained else {}
    model = fit_linearized_gp(X, torch.full((n, 1), 3.0).double(), **options)
    posterior = model.posterior(X)
    assert torch.isfinite(posterior.mean).all()
    assert torch.isfinite(posterior.variance).all()
    Y = X[:, 1:].clone()
    X[:, 0] = 1.0
    assert torch.isfinite(fit_linearized_gp(X, Y, **options).posterior(X).mean).all()


def test_the_same_again_and_nothing_is_touched():
    X, Y = data()
    net = network()
    before = [p.clone() for p in net.parameters()]
    state = torch.random.get_rng_state()
    for options in ({}, {"net": net, "steps": 20}):
        first = fit_linearized_gp(X, Y, **options).posterior(X).mean
        assert torch.equal(first, fit_linearized_gp(X, Y, **options).posterior(X).mean)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    at = data(seed=1)[0]
    means = [
        fit_linearized_gp(X, Y, generator=torch.Generator().manual_seed(seed)).posterior(at).mean
        for seed in (1, 1, 2)
    ]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])


def test_float32_data():
    X, Y = data()
    model = fit_linearized_gp(X.float(), Y.float())
    assert model.posterior(X.float()).mean.dtype == torch.float64
    assert torch.isfinite(model.posterior(X.float()).variance).all()


def test_shapes_that_do_not_fit():
    X, Y = data()
    with pytest.raises(ValueError, match=r"train_X, train_Y: .*\(15, 2\) and \(15,\)"):
        fit_linearized_gp(X, Y.squeeze(1))
    with pytest.raises(ValueError, match=r"train_Yvar: .*\(15, 1\), got \(15,\)"):
        fit_linearized_gp(X, Y, Y.squeeze(1))
    with pytest.raises(ValueError, match=r"bounds: expected \(2 x 2\)"):
        fit_linearized_gp(X, Y, bounds=BOUNDS.flip(0))


@pytest.mark.parametrize("targets", [1, 2])
def test_of_an_estimator(targets):
    X, Y = data()
    y = np.column_stack([Y, 5 * Y + X[:, :1]])[:, :targets].squeeze()
    estimator = LinearizedGPRegressor(steps=20, random_state=0).fit(X.numpy(), y)
    model = LinearizedGPModel.from_estimator(estimator)
    mean, std = estimator.predict(X.numpy(), return_std=True)
    posterior = model.posterior(X, observation_noise=True)
    np.testing.assert_allclose(posterior.mean.numpy(), mean.reshape(15, -1), rtol=1e-9)
    np.testing.assert_allclose(posterior.variance.sqrt().numpy(), std.reshape(15, -1), rtol=1e-7)
    more = model.condition_on_observations(X[:2], torch.from_numpy(y.reshape(15, -1)[:2]))
    estimator.partial_fit(X[:2].numpy(), y[:2])
    np.testing.assert_allclose(
        more.posterior(X).mean.numpy(), estimator.predict(X.numpy()).reshape(15, -1), rtol=1e-8
    )
    with pytest.raises(TypeError, match="estimator: expected a LinearizedGPRegressor, got ndarray"):
        LinearizedGPModel.from_estimator(y)
