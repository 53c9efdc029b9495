"""InducingPointNTKernel in GPyTorch's ExactGP against Titsias' formulas."""

import copy

import gpytorch
import linear_operator
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from inducing_cases import (
    PRECISION,
    Regression,
    Titsias,
    central_difference,
    make_data,
    make_likelihood,
    make_net,
    noise_of,
)
from torch.testing import assert_close

from lingp.gpytorch_models import InducingPointNTKernel, NetworkMean, PriorMean
from lingp.inference import Sparse
from lingp.likelihoods import Gaussian
from lingp.models import LinearizedGP

OUTPUTS = pytest.mark.parametrize("num_outputs", [1, 2])


def sgpr(x, y, z, num_outputs=1, likelihood=None, inner=lambda kernel: kernel, mean=NetworkMean):
    likelihood = likelihood or make_likelihood(num_outputs)

    def wrap(kernel):
        return InducingPointNTKernel(inner(kernel), z, likelihood)

    return Regression(x, y, likelihood, make_net(num_outputs), wrap, mean)


def bound_of(model):
    """The sum that ExactMarginalLogLikelihood divides by the number of targets."""
    model.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    (x,), y = model.train_inputs, model.train_targets
    return objective(model(x), y) * y.numel()


@pytest.fixture
def no_iterative_solver(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("an iterative solver was called")

    monkeypatch.setattr(linear_operator.utils, "linear_cg", refuse)
    monkeypatch.setattr(linear_operator.utils.lanczos, "lanczos_tridiag", refuse)


@OUTPUTS
@pytest.mark.filterwarnings("ignore:The input matches the stored training data")
def test_bound_and_predictions(num_outputs):
    x, y = make_data(30, num_outputs)
    z, _ = make_data(5, seed=2)
    model = sgpr(x, y, z, num_outputs)
    dense = Titsias(make_net(num_outputs), x, y, z, noise_of(model.likelihood, 30))
    assert_close(bound_of(model), dense.bound(), rtol=1e-10, atol=0)
    model.eval()
    far = 5 * make_data(3, seed=3)[0]
    for test in (make_data(7, seed=4)[0], far, x):  # x: all but the strategy see K(x, x) twice
        with torch.no_grad():
            f = model(test)
        mean, covariance = dense.predict(test)
        scale = float(covariance.diagonal().max())
        assert_close(f.mean.flatten(), mean, rtol=1e-9, atol=1e-9)
        assert_close(f.covariance_matrix, covariance, rtol=1e-9, atol=1e-10 * scale)
        assert_close(f.variance.flatten(), covariance.diagonal(), rtol=1e-9, atol=1e-10 * scale)


@OUTPUTS
def test_inducing_points_at_the_data_are_exact(num_outputs):
    x, y = make_data(12, num_outputs)
    model = sgpr(x, y, x, num_outputs)
    exact = Regression(x, y, make_likelihood(num_outputs), make_net(num_outputs))
    # what jitter of rounding size in K(Z, Z) leaves of K − Q, over the noise
    assert_close(bound_of(model), bound_of(exact), rtol=1e-8, atol=1e-8)
    test, _ = make_data(6, seed=1)
    with torch.no_grad():
        f, expected = model.eval()(test), exact.eval()(test)
    assert_close(f.mean, expected.mean, rtol=1e-7, atol=1e-8)
    assert_close(f.covariance_matrix, expected.covariance_matrix, rtol=1e-7, atol=1e-8)


@OUTPUTS
def test_gradients_of_the_bound(num_outputs):
    """For inducing inputs, the prior and the noise, against central differences."""
    x, y = make_data(25, num_outputs)
    z, _ = make_data(5, seed=2)
    model = sgpr(x, y, z, num_outputs)
    bound_of(model).backward()
    named = dict(model.named_parameters())
    learned = {
        "covar_module.inducing_points",
        "covar_module.base_kernel.prior.raw_precision",
        *(f"likelihood.{name}" for name, _ in model.likelihood.named_parameters()),
    }
    assert learned <= set(named)
    for name in sorted(learned):
        parameter = named[name]
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)

        def at(value, parameter=parameter):
            parameter.copy_(value)
            return bound_of(model)

        start = parameter.detach().clone()
        expected = central_difference(at, start, direction)
        parameter.data.copy_(start)
        # rounding in the bound, about 1e-12 of it, over the step
        assert_close((parameter.grad * direction).sum(), expected, rtol=1e-6, atol=1e-6)


def test_gradient_of_a_prediction_for_its_inputs():
    x, y = make_data(25)
    z, _ = make_data(5, seed=2)
    model = sgpr(x, y, z).eval()
    test, _ = make_data(4, seed=1)
    direction = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)

    def value(at):
        f = model(at)
        return (f.mean + f.variance).sum()

    inputs = test.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(value(inputs), inputs)
    expected = central_difference(value, test, direction)
    assert_close((gradient * direction).sum(), expected, rtol=1e-7, atol=1e-7)


def test_training_moves_inducing_points_and_raises_the_bound():
    x, y = make_data(40)
    z, _ = make_data(4, seed=2)
    model = sgpr(x, y, z)
    before = bound_of(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        (-bound_of(model)).backward()
        optimizer.step()
    after = bound_of(model)
    assert after > before + 1
    learned = model.covar_module.inducing_points.detach()
    assert (learned - z).abs().min() > 0
    noise, base = noise_of(model.likelihood, 40), model.covar_module.base_kernel
    precision = base.prior.raw_precision.detach().exp()
    dense = Titsias(make_net(), x, y, learned, noise, precision)
    assert_close(after, dense.bound(), rtol=1e-9, atol=0)
    test, _ = make_data(3, seed=1)  # nothing is left over from the points before
    assert_close(model.eval()(test).mean, dense.predict(test)[0], rtol=1e-8, atol=1e-8)


def test_training_leaves_the_data_alone():
    """Rows of the training inputs are what inducing points are made from, and often are a view."""
    x, y = make_data(20)
    kept = x.clone()
    model = sgpr(x, y, x[::5])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    (-bound_of(model)).backward()
    optimizer.step()
    assert torch.equal(x, kept)
    assert not torch.equal(model.covar_module.inducing_points, x[::5])


@OUTPUTS
def test_the_closed_form_is_the_same(num_outputs):
    """LinearizedGP with a sparse posterior, for the same prior, noise and inducing inputs."""
    x, y = make_data(25, num_outputs)
    z, _ = make_data(5, seed=2)
    model = sgpr(x, y, z, num_outputs, mean=PriorMean)
    gp = LinearizedGP(
        make_net(num_outputs),
        Gaussian(noise_of(model.likelihood, 1)),
        prior=PRECISION,
        mean="refit",
        inference=Sparse(inducing=z, complement="prior"),
    ).fit(x, y.view(25, num_outputs))
    assert_close(bound_of(model), gp.log_marginal_likelihood(), rtol=1e-9, atol=0)
    test, _ = make_data(6, seed=1)
    with torch.no_grad():
        f, expected = model.eval()(test), gp.posterior(test)
    assert_close(f.mean.flatten(), expected.mean.flatten(), rtol=1e-7, atol=1e-8)
    scale = float(expected.variance.max())
    got, wanted = f.covariance_matrix, expected.covariance_matrix
    assert_close(got, wanted, rtol=1e-7, atol=1e-9 * scale)


def test_noise_of_each_datum():
    x, y = make_data(20)
    z, _ = make_data(4, seed=2)
    noise = torch.linspace(0.01, 0.1, 20, dtype=torch.float64)
    likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise)
    model = sgpr(x, y, z, likelihood=likelihood)
    dense = Titsias(make_net(), x, y, z, noise)
    assert_close(bound_of(model), dense.bound(), rtol=1e-10, atol=0)
    test, _ = make_data(3, seed=1)
    mean, covariance = dense.predict(test)
    f = model.eval()(test)
    assert_close(f.mean, mean, rtol=1e-9, atol=1e-9)
    assert_close(f.covariance_matrix, covariance, rtol=1e-9, atol=1e-9)


def test_kernels_made_from_an_ntk():
    """A scale and a sum inside are as good as the kernel itself."""
    x, y = make_data(20)
    z, _ = make_data(4, seed=2)

    def twice(kernel):
        scaled = ScaleKernel(kernel).double()
        scaled.outputscale = 2.0
        return scaled

    model = sgpr(x, y, z, inner=twice)
    dense = Titsias(make_net(), x, y, z, noise_of(model.likelihood, 20), precision=0.25)
    assert_close(bound_of(model), dense.bound(), rtol=1e-10, atol=0)
    test, _ = make_data(3, seed=1)
    assert_close(model.eval()(test).covariance_matrix, dense.predict(test)[1])

    both = sgpr(x, y, x, inner=lambda kernel: kernel + RBFKernel().double())
    exact = Regression(x, y, make_likelihood(), make_net(), lambda k: k + RBFKernel().double())
    assert_close(bound_of(both), bound_of(exact), rtol=1e-8, atol=1e-7)


def test_a_kernel_around_it_is_refused():
    x, y = make_data(10)
    likelihood = make_likelihood()

    def outside(kernel):
        return ScaleKernel(InducingPointNTKernel(kernel, x[:3], likelihood)).double()

    model = Regression(x, y, likelihood, make_net(), outside).eval()
    with pytest.raises(TypeError, match="Wrap its base kernel instead"):
        model(x[:2])


def test_noise_that_is_correlated_over_outputs_is_refused():
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(2, rank=1)
    with pytest.raises(ValueError, match="rank 1"):
        sgpr(*make_data(5, 2), torch.zeros(1, 3).double(), 2, likelihood=likelihood)


def test_a_copy_has_its_own_likelihood():
    x, y = make_data(20)
    z, _ = make_data(4, seed=2)
    model = sgpr(x, y, z)
    bound_of(model)
    twin = copy.deepcopy(model)
    twin.likelihood.noise = 0.25
    dense = Titsias(make_net(), x, y, z, noise_of(twin.likelihood, 20))
    assert_close(bound_of(twin), dense.bound(), rtol=1e-10, atol=0)
    assert model.likelihood.noise != twin.likelihood.noise


def test_points_that_coincide_add_nothing():
    """K(Z, Z) is singular then."""
    x, y = make_data(20)
    z, _ = make_data(4, seed=2)
    single, double = sgpr(x, y, z), sgpr(x, y, torch.cat([z, z]))
    assert_close(bound_of(double), bound_of(single), rtol=1e-8, atol=1e-7)
    test, _ = make_data(3, seed=1)
    f, expected = double.eval()(test), single.eval()(test)
    assert_close(f.mean, expected.mean, rtol=1e-7, atol=1e-7)
    assert_close(f.covariance_matrix, expected.covariance_matrix, rtol=1e-6, atol=1e-7)


def test_float32_loses_digits_but_stays_a_bound():
    """More points than float32 resolves in K(Z, Z)."""
    x, y = make_data(100)
    z, _ = make_data(60, seed=2)
    model = sgpr(x, y, z)
    low = copy.deepcopy(model).float()
    low.set_train_data(x.float(), y.float(), strict=False)
    value, expected = bound_of(low), bound_of(model)
    assert value.dtype == torch.float32
    assert value < expected
    assert_close(value.double(), expected, rtol=0.3, atol=0)
    assert low.eval()(x[:3].float()).variance.isfinite().all()


@OUTPUTS
def test_nothing_is_iterative_past_800_rows(num_outputs, no_iterative_solver):
    x, y = make_data(810 // num_outputs, num_outputs)
    z, _ = make_data(5, seed=2)
    model = sgpr(x, y, z, num_outputs)
    dense = Titsias(make_net(num_outputs), x, y, z, noise_of(model.likelihood, len(x)))
    assert_close(bound_of(model), dense.bound(), rtol=1e-10, atol=0)
    test, _ = make_data(810 // num_outputs, seed=1)
    with torch.no_grad():
        f = model.eval()(test)
        assert f.rsample(torch.Size([2])).shape == (2, *f.event_shape)
    _, covariance = dense.predict(test)
    assert_close(f.variance.flatten(), covariance.diagonal(), rtol=1e-8, atol=1e-8)
