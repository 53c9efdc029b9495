"""GPyTorch's ExactGP over NTKernel against the dense formulas, below and above 800 rows.

Past 800 rows GPyTorch solves by conjugate gradients to a tolerance of 1 (0.01 when predicting), and
is far off on these spectra. Models that begin with an NTKernel stay exact.
"""

import warnings

import gpytorch
import linear_operator
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from kernel_cases import DenseGP, ExactModel, dense_jacobian, make_data, make_network
from linear_operator.utils.warnings import NumericalWarning

from lingp.gpytorch_models import ExactKernel, NetworkMean, NTKernel
from lingp.priors import Layerwise

NOISE, PRECISION = 1 / 64, 0.5  # exact in float32, in which GPyTorch reads Python numbers
SIZES = [40, 850]


@pytest.fixture(autouse=True)
def no_iterative_solver(monkeypatch):
    """Conjugate gradients and Lanczos are never reached."""

    def refuse(*args, **kwargs):
        raise AssertionError("an iterative solver was called")

    monkeypatch.setattr(linear_operator.utils, "linear_cg", refuse)
    monkeypatch.setattr(linear_operator.utils.lanczos, "lanczos_tridiag", refuse)


@pytest.fixture(scope="module", params=SIZES)
def problem(request):
    net = make_network()
    x, y = make_data(request.param)
    x_test, _ = make_data(20, seed=1)
    return net, x, y, x_test


def gaussian_likelihood(noise=NOISE):
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = noise
    return likelihood


def check(model, likelihood, dense, cross, test_covar, x, y, x_test, test_mean=0.0):
    model.train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    value = mll(model(x), y) * y.numel()
    torch.testing.assert_close(value, dense.log_marginal_likelihood, rtol=1e-9, atol=1e-8)
    model.eval()
    mean, covar = dense.posterior(cross, test_covar)
    for fast in (False, True):
        with torch.no_grad(), gpytorch.settings.fast_pred_var(fast):
            model.train()
            model.eval()
            f = model(x_test)
            flat = f.mean.flatten()
        scale = float(test_covar.abs().max())
        torch.testing.assert_close(flat, mean + test_mean, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(f.covariance_matrix, covar, rtol=1e-7, atol=1e-9 * scale)
        torch.testing.assert_close(
            f.variance.flatten(), covar.diagonal(), rtol=1e-7, atol=1e-9 * scale
        )
    return value


FORMS = ["ntk", "scaled", "sum", "other first", "scaled first", "scaled sum", "product"]


@pytest.mark.parametrize("form", FORMS)
def test_likelihood_and_prediction(problem, form):
    net, x, y, x_test = problem
    j, k = dense_jacobian(net, x), dense_jacobian(net, x_test)
    pairs = [(j, j), (k, j), (k, k)]
    ntk = [a @ b.mT / PRECISION for a, b in pairs]
    rbf_kernel = RBFKernel().double()
    with torch.no_grad():
        rbf = [rbf_kernel(a, b).to_dense() for a, b in ((x, x), (x_test, x), (x_test, x_test))]
    kernel = NTKernel.from_model(net, prior=PRECISION)
    if form == "ntk":
        expected = ntk
    elif form == "scaled":
        kernel, expected = ScaleKernel(kernel).double(), [2.5 * a for a in ntk]
        kernel.outputscale = 2.5
    elif form == "product":
        kernel, expected = kernel * rbf_kernel, [a * b for a, b in zip(ntk, rbf, strict=True)]
    else:
        total = kernel + rbf_kernel
        if form == "other first":
            total = ExactKernel(rbf_kernel + kernel)
        elif form == "scaled first":
            scaled = ScaleKernel(kernel).double()
            scaled.outputscale = 1.0
            total = ExactKernel(scaled + rbf_kernel)
        kernel, expected = total, [a + b for a, b in zip(ntk, rbf, strict=True)]
        if form == "scaled sum":
            kernel, expected = ScaleKernel(total).double(), [2.5 * a for a in expected]
            kernel.outputscale = 2.5
    likelihood = gaussian_likelihood()
    model = ExactModel(x, y, likelihood, kernel)
    dense = DenseGP(expected[0], NOISE, y)
    check(model, likelihood, dense, expected[1], expected[2], x, y, x_test)


def test_gradients_of_the_marginal_likelihood(problem):
    net, x, y, _ = problem
    j = dense_jacobian(net, x)
    sizes = torch.tensor([p.numel() for p in net.parameters()])
    precision = torch.linspace(0.3, 2.0, len(sizes), dtype=torch.float64)

    raw, noise = precision.log().requires_grad_(True), torch.tensor(NOISE).double()
    noise.requires_grad_(True)
    covar = j / raw.exp().repeat_interleave(sizes) @ j.mT
    expected = torch.autograd.grad(DenseGP(covar, noise, y).log_marginal_likelihood, (raw, noise))

    kernel = NTKernel.from_model(net, prior=Layerwise(precision))
    likelihood = gaussian_likelihood()
    model = ExactModel(x, y, likelihood, kernel)
    value = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(x), y) * len(y)
    value.backward()
    torch.testing.assert_close(kernel.prior.raw_precision.grad, expected[0], rtol=1e-6, atol=1e-7)
    by_noise = likelihood.noise_covar.raw_noise.grad
    raw_noise = likelihood.noise_covar.raw_noise.detach()
    torch.testing.assert_close(  # d softplus
        by_noise, expected[1] * torch.sigmoid(raw_noise), rtol=1e-6, atol=1e-7
    )


def test_gradients_of_a_prediction_for_its_inputs(problem):
    """As an acquisition function needs them."""
    net, x, y, x_test = problem
    weights = torch.linspace(-1, 1, len(x_test), dtype=torch.float64)
    j = dense_jacobian(net, x).detach()

    inputs = x_test[:5].clone().requires_grad_(True)
    k = dense_jacobian(net, inputs)
    mean, covar = DenseGP(j @ j.mT / PRECISION, NOISE, y).posterior(
        k @ j.mT / PRECISION, k @ k.mT / PRECISION
    )
    expected = torch.autograd.grad((mean + covar.diagonal()) @ weights[:5], inputs)[0]

    model = ExactModel(
        x, y, gaussian_likelihood(), NTKernel.from_model(net, prior=PRECISION)
    ).eval()
    inputs = x_test[:5].clone().requires_grad_(True)
    f = model(inputs)
    found = torch.autograd.grad((f.mean + f.variance) @ weights[:5], inputs)[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_network_as_mean(problem):
    net, x, y, x_test = problem
    j, k = dense_jacobian(net, x), dense_jacobian(net, x_test)
    kernel = NTKernel.from_model(net, prior=PRECISION)
    likelihood = gaussian_likelihood()
    model = ExactModel(x, y, likelihood, kernel, NetworkMean(kernel))
    with torch.no_grad():
        residual, test_mean = y - net(x).squeeze(1), net(x_test).squeeze(1)
    dense = DenseGP(j @ j.mT / PRECISION, NOISE, residual)
    cross, test_covar = k @ j.mT / PRECISION, k @ k.mT / PRECISION
    check(model, likelihood, dense, cross, test_covar, x, y, x_test, test_mean)


@pytest.mark.parametrize("rows", [15, 290])
def test_multitask(rows):
    """Three outputs; 870 kernel rows in the larger case."""
    outputs = 3
    net = make_network(outputs=outputs)
    x, y = make_data(rows, outputs=outputs)
    x_test, _ = make_data(8, seed=1)
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=outputs).double()
    likelihood.noise = NOISE
    likelihood.task_noises = torch.tensor([1 / 64, 1 / 32, 1 / 16])
    j, k = dense_jacobian(net, x), dense_jacobian(net, x_test)
    noise = (likelihood.noise + likelihood.task_noises).detach().repeat(rows)
    kernel = NTKernel.from_model(net, prior=PRECISION)
    model = ExactModel(x, y, likelihood, kernel, NetworkMean(kernel), outputs)
    with torch.no_grad():
        residual, test_mean = y - net(x), net(x_test).flatten()
    dense = DenseGP(j @ j.mT / PRECISION, torch.diag(noise), residual)
    cross, test_covar = k @ j.mT / PRECISION, k @ k.mT / PRECISION
    check(model, likelihood, dense, cross, test_covar, x, y, x_test, test_mean)


def test_fixed_noise(problem):
    net, x, y, x_test = problem
    noise = torch.linspace(0.01, 0.1, len(x), dtype=torch.float64)
    likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise)
    j, k = dense_jacobian(net, x), dense_jacobian(net, x_test)
    model = ExactModel(x, y, likelihood, NTKernel.from_model(net, prior=PRECISION))
    dense = DenseGP(j @ j.mT / PRECISION, torch.diag(noise), y)
    check(model, likelihood, dense, k @ j.mT / PRECISION, k @ k.mT / PRECISION, x, y, x_test)


def test_samples_of_many_points(problem):
    """Posterior samples at more than 800 points have the posterior's covariance."""
    net, x, y, _ = problem
    x_test, _ = make_data(820, seed=2)
    model = ExactModel(
        x, y, gaussian_likelihood(), NTKernel.from_model(net, prior=PRECISION)
    ).eval()
    j, k = dense_jacobian(net, x), dense_jacobian(net, x_test)
    _, covar = DenseGP(j @ j.mT / PRECISION, NOISE, y).posterior(
        k @ j.mT / PRECISION, k @ k.mT / PRECISION
    )
    torch.manual_seed(0)
    with torch.no_grad():
        f = model(x_test)
        with pytest.warns(NumericalWarning, match="added jitter"):  # the rank is P: it says so
            samples = f.rsample(torch.Size([4000])) - f.mean
    seen = samples.mT @ samples / len(samples)
    error = torch.linalg.matrix_norm(seen - covar) / torch.linalg.matrix_norm(covar)
    assert error < 0.2


def test_conditioning_on_more_data():
    """`get_fantasy_model` equals a model of all the data."""
    net = make_network()
    x, y = make_data(30)
    x_test, _ = make_data(6, seed=1)

    def model_of(rows):
        kernel = NTKernel.from_model(net, prior=PRECISION)
        return ExactModel(x[:rows], y[:rows], gaussian_likelihood(), kernel).eval()

    with torch.no_grad():
        model = model_of(25)
        model(x_test)
        grown = model.get_fantasy_model(x[25:], y[25:])
        f, whole = grown(x_test), model_of(30)(x_test)
    torch.testing.assert_close(f.mean, whole.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(f.covariance_matrix, whole.covariance_matrix, rtol=1e-6, atol=1e-7)


def test_a_sum_that_gpytorch_would_iterate_on_is_named():
    """A kernel is not asked when it is added on the right: past 800 rows it says so."""
    x, _ = make_data(810)
    ntk, rbf = NTKernel.from_model(make_network()), RBFKernel().double()
    for kernel in (rbf + ntk, rbf * ntk, ScaleKernel(ntk).double() + rbf):
        with pytest.warns(NumericalWarning, match="ExactKernel"):
            kernel(x).evaluate_kernel()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ExactKernel(kernel)(x).evaluate_kernel()
            kernel(x[:50]).evaluate_kernel()
            kernel(x, x[:50]).evaluate_kernel()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kernel in (ntk, ScaleKernel(ntk).double(), ntk + rbf, (ntk * rbf) + ntk):
            kernel(x).evaluate_kernel()
