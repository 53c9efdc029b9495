"""A model from data alone, and from a scikit-learn estimator."""

import numpy as np
import pytest
import torch

from lingp import LinearizedGPRegressor
from lingp.likelihoods import KnownNoiseGaussian

pytest.importorskip("botorch", reason="BoTorch is not installed")

from botorch.models.transforms import Normalize, Standardize

from lingp.integrations.botorch import LinearizedGPModel, fit_linearized_gp

BOUNDS = torch.tensor([[-5.0, 0], [10, 15]], dtype=torch.float64)


def data(n=15, seed=0):
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    X = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * unit
    return X, 1000 + 50 * (4 * unit).sin().sum(1, keepdim=True)


def test_it_predicts_in_the_units_of_the_data():
    X, Y = data(40)
    model = fit_linearized_gp(X, Y, bounds=BOUNDS, steps=400)
    at, truth = data(200, seed=1)
    posterior = model.posterior(at)
    error = (posterior.mean - truth).square().mean().sqrt()
    assert error < 0.1 * truth.std()
    z = (posterior.mean - truth) / model.posterior(at, observation_noise=True).variance.sqrt()
    assert (z.abs() < 3).double().mean() > 0.9


def test_inputs_are_mapped_by_their_bounds():
    X, Y = data()
    transform = fit_linearized_gp(X, Y, bounds=BOUNDS, steps=2).input_transform
    corners = torch.tensor([[-1.0, -1], [1, 1]], dtype=torch.float64) * 3**0.5
    torch.testing.assert_close(transform(BOUNDS), corners)
    own = fit_linearized_gp(X, Y, steps=2).input_transform
    ends = torch.stack([X.amin(0), X.amax(0)])
    torch.testing.assert_close(own(ends), corners)


def test_transforms_of_ones_own_learn_and_are_copied():
    X, Y = data()
    inputs, outcomes = Normalize(2), Standardize(1)
    model = fit_linearized_gp(X, Y, input_transform=inputs, outcome_transform=outcomes, steps=2)
    assert model.input_transform(X).amax() == 1
    assert not outcomes._is_trained
    torch.testing.assert_close(model.outcome_transform.means, Y.mean(0, keepdim=True))


def test_known_noise_and_several_outputs():
    X, Y = data()
    Y = torch.cat([Y, -2 * Y], 1)
    Yvar = torch.rand(15, 2, generator=torch.Generator().manual_seed(0)).double() + 0.5
    model = fit_linearized_gp(X, Y, Yvar, steps=20)
    assert model.num_outputs == 2
    assert isinstance(model.gp.likelihood, KnownNoiseGaussian)
    known = model.gp.laplace.training.targets[..., 1]
    torch.testing.assert_close(known * Y.var(0), Yvar)
    posterior = model.posterior(X, observation_noise=True)
    added = posterior.variance - model.posterior(X).variance
    torch.testing.assert_close(added, Yvar.mean(0).expand(15, 2))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_points_and_constant_values(n):
    X, _ = data(n)
    model = fit_linearized_gp(X, torch.full((n, 1), 3.0).double(), steps=20)
    posterior = model.posterior(X)
    assert torch.isfinite(posterior.mean).all()
    assert torch.isfinite(posterior.variance).all()
    X[:, 0] = 1.0
    assert torch.isfinite(fit_linearized_gp(X, X[:, 1:], steps=2).posterior(X).mean).all()


def test_the_same_again_and_nothing_is_touched():
    X, Y = data()
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    ).double()
    before = [p.clone() for p in net.parameters()]
    state = torch.random.get_rng_state()
    first = fit_linearized_gp(X, Y, net=net, steps=20).posterior(X).mean
    again = fit_linearized_gp(X, Y, net=net, steps=20).posterior(X).mean
    assert torch.equal(first, again)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    others = [
        fit_linearized_gp(X, Y, steps=5, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    means = [model.posterior(X).mean for model in others]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])


def test_float32_data():
    X, Y = data()
    model = fit_linearized_gp(X.float(), Y.float(), steps=5)
    assert model.posterior(X.float()).mean.dtype == torch.float64


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
