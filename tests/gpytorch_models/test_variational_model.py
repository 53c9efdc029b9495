"""What LinearizedSVGP takes, keeps, saves and refuses."""

import copy

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.variational import CholeskyVariationalDistribution
from inducing_cases import (
    PRECISION,
    elbo,
    make_data,
    make_likelihood,
    make_net,
    make_svgp,
    set_whitened,
    some_whitened,
)
from torch import nn
from torch.testing import assert_close

from lingp.gpytorch_models import LinearizedSVGP, NTKernel, WhitenedStrategy


def test_batches_of_inputs():
    model = make_svgp(make_data(4, seed=2)[0], 2)
    set_whitened(model, *some_whitened(8))
    x = torch.stack([make_data(3, seed=s)[0] for s in (0, 1)])
    f = model(x)
    assert f.mean.shape == (2, 3, 2)
    for b in range(2):
        expected = model(x[b])
        assert_close(f.mean[b], expected.mean)
        assert_close(f.variance[b], expected.variance)
        assert_close(f.covariance_matrix[b], expected.covariance_matrix)


def test_images():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2))
        images = torch.randn(12, 1, 4, 4)
    with pytest.raises(ValueError, match=r"inducing_points: .*flatten\(1\)"):
        LinearizedSVGP(net, images[:3])
    kernel = NTKernel.from_model(net, input_shape=(1, 4, 4)).double()
    model = LinearizedSVGP(kernel, images[:3].flatten(1))
    f = model(images.flatten(1))
    assert_close(f.mean, net(images).double(), rtol=1e-5, atol=1e-5)
    set_whitened(model, *some_whitened(6))  # at the prior nothing depends on Z
    targets = images.flatten(1)[:, :2].double()
    elbo(model, make_likelihood(2), images.flatten(1), targets).backward()
    assert (model.variational_strategy.inducing_points.grad.abs().sum(1) > 0).all()


def test_a_network_in_float32_is_worked_with_in_float64():
    net, z = make_net().float(), make_data(4, seed=2)[0]
    model = LinearizedSVGP(net, z.float())
    f = model(make_data(3)[0].float())
    assert f.mean.dtype == f.covariance_matrix.dtype == torch.float64
    assert next(net.parameters()).dtype == torch.float32


def test_float32_when_asked_for():
    """Errors of rounding: eps·trace K(Z, Z) of jitter, over the noise."""
    x, y = make_data(30)
    z, _ = make_data(5, seed=2)
    model, likelihood = make_svgp(z), make_likelihood()
    set_whitened(model, *some_whitened(5))
    expected = elbo(model, likelihood, x, y)
    low, low_likelihood = copy.deepcopy(model).float(), copy.deepcopy(likelihood).float()
    assert low(x).mean.dtype == torch.float32
    assert_close(elbo(low, low_likelihood, x, y.float()).double(), expected, rtol=1e-4, atol=0)


def test_what_is_saved_is_all_there_is():
    x, _ = make_data(5)
    z, _ = make_data(4, seed=2)
    model = make_svgp(z, 2)
    set_whitened(model, *some_whitened(8))
    twin = make_svgp(z + 1, 2)
    twin.load_state_dict(model.state_dict())
    for other in (twin, copy.deepcopy(model)):
        assert_close(other.eval()(x).mean, model.eval()(x).mean)
        assert_close(other(x).covariance_matrix, model(x).covariance_matrix)


def test_nothing_is_stale_in_eval_mode():
    x, _ = make_data(5)
    z, _ = make_data(4, seed=2)
    model = make_svgp(z).eval()
    model(x)
    set_whitened(model, *some_whitened(4))
    model.variational_strategy.inducing_points.data.mul_(0.5)
    model.covar_module.prior.raw_precision.data.add_(1.0)
    fresh = copy.deepcopy(model).train()
    assert_close(model(x).mean, fresh(x).mean, rtol=0, atol=0)
    assert_close(model(x).covariance_matrix, fresh(x).covariance_matrix, rtol=0, atol=0)


def test_fixed_inducing_points():
    z, _ = make_data(4, seed=2)
    model = make_svgp(z, learn_inducing_locations=False)
    assert "variational_strategy.inducing_points" not in dict(model.named_parameters())
    assert torch.equal(model.variational_strategy.inducing_points, z)
    z.zero_()  # the model keeps its own
    assert model.variational_strategy.inducing_points.abs().min() > 0


def test_token_ids_cant_be_learned():
    net = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 1)).double()
    kernel = NTKernel.from_model(net, input_dtype=torch.long)
    ids = torch.tensor([[0.0, 3.0], [6.0, 1.0], [2.0, 2.0]])
    with pytest.raises(ValueError, match="learn_inducing_locations=False"):
        LinearizedSVGP(kernel, ids)
    model = LinearizedSVGP(kernel, ids, learn_inducing_locations=False)
    assert_close(model(ids).mean, net(ids.long()).squeeze(1))


def test_other_kernels_are_for_the_strategy():
    """A kernel made from an NTKernel, in a model of one's own."""
    kernel = NTKernel.from_model(make_net(2), prior=1.0)
    with pytest.raises(TypeError, match="WhitenedStrategy"):
        LinearizedSVGP(gpytorch.kernels.ScaleKernel(kernel), torch.zeros(1, 3))

    class Scaled(gpytorch.models.ApproximateGP):
        def __init__(self, z):
            distribution = CholeskyVariationalDistribution(2 * len(z)).double()
            super().__init__(WhitenedStrategy(self, z, distribution))
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel).double()
            self.covar_module.outputscale = 1 / PRECISION
            self.mean_module = model.mean_module

        def forward(self, x):
            return MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))

    z, _ = make_data(4, seed=2)
    model = make_svgp(z, 2)
    scaled = Scaled(z)
    for each in (model, scaled):
        set_whitened(each, *some_whitened(8))
    x, y = make_data(6, 2)
    assert_close(scaled(x).covariance_matrix, model(x).covariance_matrix)
    likelihood = make_likelihood(2)
    assert_close(elbo(scaled, likelihood, x, y), elbo(model, likelihood, x, y))


def test_no_fantasies():
    model = make_svgp(make_data(4, seed=2)[0])
    with pytest.raises(NotImplementedError, match="fantasy"):
        model.get_fantasy_model(*make_data(2))
