"""LinearizedSVGP with GPyTorch's objectives and optimisers against dense formulas."""

import gpytorch
import linear_operator
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.mlls import PredictiveLogLikelihood, VariationalELBO
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    MeanFieldVariationalDistribution,
    NaturalVariationalDistribution,
)
from inducing_cases import (
    Regression,
    Titsias,
    central_difference,
    elbo,
    make_data,
    make_likelihood,
    make_net,
    make_svgp,
    noise_of,
    set_whitened,
    some_whitened,
)
from torch.testing import assert_close

from lingp.gpytorch_models import LinearizedSVGP, to_gpytorch
from lingp.likelihoods import Categorical, Gaussian

OUTPUTS = pytest.mark.parametrize("num_outputs", [1, 2])
POINTS = 5


@pytest.fixture
def problem(num_outputs):
    x, y = make_data(30, num_outputs)
    z, _ = make_data(POINTS, seed=2)
    likelihood = make_likelihood(num_outputs)
    dense = Titsias(make_net(num_outputs), x, y, z, noise_of(likelihood, 30))
    return make_svgp(z, num_outputs), likelihood, x, y, dense


@OUTPUTS
def test_elbo_of_any_q(problem, num_outputs):
    model, likelihood, x, y, dense = problem
    q = some_whitened(POINTS * num_outputs)
    set_whitened(model, *q)
    expected = dense.expected_log_prob(*q) - dense.divergence(*q)
    assert_close(elbo(model, likelihood, x, y), expected, rtol=1e-10, atol=0)
    ours = to_gpytorch(Gaussian(dense.noise[:num_outputs].clone()))
    assert_close(elbo(model, ours, x, y), expected, rtol=1e-10, atol=0)


@OUTPUTS
def test_predictive_log_likelihood_of_any_q(problem, num_outputs):
    model, likelihood, x, y, dense = problem
    q = some_whitened(POINTS * num_outputs)
    set_whitened(model, *q)
    shift, spread = dense.moments(*q)
    marginal = torch.distributions.Normal(shift, (spread.diagonal() + dense.noise).sqrt())
    expected = marginal.log_prob(dense.residual).sum() - dense.divergence(*q)
    value = elbo(model, likelihood, x, y, PredictiveLogLikelihood)
    assert_close(value, expected, rtol=1e-10, atol=0)


@OUTPUTS
def test_the_best_q_reaches_the_bound_of_titsias(problem, num_outputs):
    model, likelihood, x, y, dense = problem
    set_whitened(model, *dense.best_whitened())
    assert_close(elbo(model, likelihood, x, y), dense.bound(), rtol=1e-9, atol=0)
    check_predictions(model, dense, num_outputs)


def check_predictions(model, dense, num_outputs):
    test = torch.cat([make_data(5, seed=4)[0], 5 * make_data(2, seed=3)[0]])
    with torch.no_grad():
        f = model.eval()(test)
    several = num_outputs > 1
    assert isinstance(f, MultitaskMultivariateNormal) == several
    assert f.event_shape == ((7, num_outputs) if several else (7,))
    mean, covariance = dense.predict(test)
    scale = float(covariance.diagonal().max())
    assert_close(f.mean.flatten(), mean, rtol=1e-8, atol=1e-8)
    assert_close(f.covariance_matrix, covariance, rtol=1e-8, atol=1e-9 * scale)
    assert_close(f.variance.flatten(), covariance.diagonal(), rtol=1e-8, atol=1e-9 * scale)


@OUTPUTS
def test_one_natural_gradient_step_finds_the_best_q(num_outputs):
    """With Gaussian noise and all data, a step of length 1 is exact."""
    x, y = make_data(30, num_outputs)
    z, _ = make_data(POINTS, seed=2)
    likelihood = make_likelihood(num_outputs)
    model = make_svgp(z, num_outputs, variational_distribution=NaturalVariationalDistribution)
    optimizer = gpytorch.optim.NGD(model.variational_parameters(), num_data=30, lr=1.0)
    (-elbo(model, likelihood, x, y) / 30).backward()
    optimizer.step()
    dense = Titsias(make_net(num_outputs), x, y, z, noise_of(likelihood, 30))
    assert_close(elbo(model, likelihood, x, y), dense.bound(), rtol=1e-9, atol=0)
    check_predictions(model, dense, num_outputs)


@OUTPUTS
def test_inducing_points_at_the_data_are_exact(num_outputs):
    x, y = make_data(12, num_outputs)
    likelihood = make_likelihood(num_outputs)
    model = make_svgp(x, num_outputs, variational_distribution=NaturalVariationalDistribution)
    optimizer = gpytorch.optim.NGD(model.variational_parameters(), num_data=12, lr=1.0)
    (-elbo(model, likelihood, x, y) / 12).backward()
    optimizer.step()
    exact = Regression(x, y, make_likelihood(num_outputs), make_net(num_outputs))
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(exact.likelihood, exact)
    # K(Z, Z) has condition number 1e7 here
    expected = objective(exact(x), y) * y.numel()
    assert_close(elbo(model, likelihood, x, y), expected, rtol=1e-7, atol=1e-7)
    test, _ = make_data(6, seed=1)
    with torch.no_grad():
        f, expected = model.eval()(test), exact.eval()(test)
    assert_close(f.mean, expected.mean, rtol=1e-6, atol=1e-7)
    assert_close(f.covariance_matrix, expected.covariance_matrix, rtol=1e-6, atol=1e-7)


@OUTPUTS
def test_minibatches_add_up(problem, num_outputs):
    """The mean over equal batches is the objective of all data: batches are unbiased."""
    model, likelihood, x, y, _ = problem
    set_whitened(model, *some_whitened(POINTS * num_outputs))
    objective = VariationalELBO(likelihood, model, num_data=30)
    parameters = [*model.parameters(), *likelihood.parameters()]
    parts = [objective(model(x[i::3]), y[i::3]) for i in range(3)]
    whole = objective(model(x), y)
    assert_close(sum(parts) / 3, whole, rtol=1e-12, atol=0)
    found = torch.autograd.grad(sum(parts) / 3, parameters)
    for gradient, expected in zip(found, torch.autograd.grad(whole, parameters), strict=True):
        assert_close(gradient, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@OUTPUTS
def test_gradients(problem, num_outputs):
    """Of every parameter, inducing inputs and prior too, against central differences."""
    model, likelihood, x, y, _ = problem
    set_whitened(model, *some_whitened(POINTS * num_outputs))
    elbo(model, likelihood, x, y).backward()
    named = dict(model.named_parameters())
    assert set(named) == {
        "variational_strategy.inducing_points",
        "variational_strategy._variational_distribution.variational_mean",
        "variational_strategy._variational_distribution.chol_variational_covar",
        "covar_module.prior.raw_precision",
    }
    for parameter in named.values():
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)

        def at(value, parameter=parameter):
            parameter.copy_(value)
            return elbo(model, likelihood, x, y)

        start = parameter.detach().clone()
        expected = central_difference(at, start, direction)
        parameter.data.copy_(start)
        assert_close((parameter.grad * direction).sum(), expected, rtol=1e-6, atol=1e-5)


def labels_of(x):
    return (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def test_classes_use_the_covariance_of_a_datums_outputs():
    """The softmax's expectation under q(f_n) jointly, against the dense matrix's blocks."""
    x, _ = make_data(8)
    likelihood = to_gpytorch(Categorical(), num_nodes=64)
    model = make_svgp(make_data(4, seed=2)[0], 3)
    set_whitened(model, *some_whitened(12))
    f = model(x)
    dense = MultitaskMultivariateNormal(f.mean, f.covariance_matrix)
    expected = likelihood.expected_log_prob(labels_of(x), dense)
    assert_close(likelihood.expected_log_prob(labels_of(x), f), expected, rtol=1e-9, atol=1e-9)
    alone = MultitaskMultivariateNormal(f.mean, f.variance.flatten().diag())
    without = likelihood.expected_log_prob(labels_of(x), alone)
    assert (without - expected).abs().max() > 0.05


def test_classes_train_in_minibatches():
    x, _ = make_data(60)
    y = labels_of(x)
    z, _ = make_data(6, seed=2)
    likelihood = to_gpytorch(Categorical(), num_nodes=32)
    model = LinearizedSVGP(make_net(3), z)
    before = elbo(model, likelihood, x, y)
    weights = [p.clone() for p in model.covar_module.network.linearized.network.parameters()]
    objective = VariationalELBO(likelihood, model, num_data=60)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(30):
        rows = torch.arange(60).roll(20 * step)[:20]
        optimizer.zero_grad()
        (-objective(model(x[rows]), y[rows])).backward()
        optimizer.step()
    assert elbo(model, likelihood, x, y) > before + 80
    assert (model.variational_strategy.inducing_points - z).abs().min() > 0
    after = model.covar_module.network.linearized.network.parameters()
    assert all(torch.equal(a, b) for a, b in zip(after, weights, strict=True))
    probs = likelihood(model.eval()(x)).mean
    assert (probs.argmax(-1) == y).double().mean() > 0.7  # the most frequent class has 62 %


def test_many_test_rows_need_no_matrix_of_them(monkeypatch):
    """Class probabilities of all rows come from their C x C blocks."""
    model = make_svgp(make_data(4, seed=2)[0], 3).eval()
    x, _ = make_data(2000)

    def refuse(self, *args, **kwargs):
        raise AssertionError("the covariance of all rows was formed")

    monkeypatch.setattr(linear_operator.operators.SumLinearOperator, "to_dense", refuse)
    with torch.no_grad():
        probs = to_gpytorch(Categorical())(model(x)).mean
    assert probs.shape == (2000, 3)


def test_starts_at_the_prior_and_leaves_random_numbers_alone():
    z, _ = make_data(4, seed=2)
    x, _ = make_data(6)
    state = torch.get_rng_state()
    for distribution in (
        CholeskyVariationalDistribution,
        MeanFieldVariationalDistribution,
        NaturalVariationalDistribution,
    ):
        model = make_svgp(z, variational_distribution=distribution)
        f, prior = model(x), model(x, prior=True)
        assert_close(f.mean, prior.mean)
        assert_close(f.covariance_matrix, prior.covariance_matrix)
        assert_close(model.variational_strategy.kl_divergence().item(), 0.0, rtol=0, atol=1e-12)
    assert torch.equal(torch.get_rng_state(), state)


def test_points_that_coincide():
    x, y = make_data(20)
    z, _ = make_data(4, seed=2)
    likelihood = make_likelihood()
    model = make_svgp(torch.cat([z, z]), variational_distribution=NaturalVariationalDistribution)
    optimizer = gpytorch.optim.NGD(model.variational_parameters(), num_data=20, lr=1.0)
    (-elbo(model, likelihood, x, y) / 20).backward()
    optimizer.step()
    dense = Titsias(make_net(), x, y, z, noise_of(likelihood, 20))
    assert_close(elbo(model, likelihood, x, y), dense.bound(), rtol=1e-8, atol=0)


@OUTPUTS
def test_nothing_is_iterative_past_800_values(num_outputs, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("an iterative solver was called")

    monkeypatch.setattr(linear_operator.utils, "linear_cg", refuse)
    monkeypatch.setattr(linear_operator.utils.lanczos, "lanczos_tridiag", refuse)
    z, _ = make_data(804 // num_outputs, seed=2)
    model = make_svgp(z, num_outputs)
    x, y = make_data(20, num_outputs)
    elbo(model, make_likelihood(num_outputs), x, y).backward()
    assert model.variational_strategy.inducing_points.grad.isfinite().all()
    test, _ = make_data(804 // num_outputs, seed=3)
    with torch.no_grad():
        f = model.eval()(test)
        assert f.rsample(torch.Size([2])).shape == (2, *f.event_shape)
