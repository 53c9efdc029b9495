"""Likelihoods behind GPyTorch's interface: expectations, and variational models that train."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import scipy.integrate
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch.nn.functional import softplus

from lingp.gpytorch_models import to_gpytorch
from lingp.likelihoods import (
    AutodiffLikelihood,
    Bernoulli,
    Categorical,
    CorrelatedGaussian,
    Gaussian,
    Heteroscedastic,
    NegativeBinomial,
    Poisson,
)


def joint(num_data, num_outputs, seed=0):
    """Means (N x C) and a dense covariance (N·C x N·C), interleaved."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(num_data, num_outputs, generator=generator).double()
    size = num_data * num_outputs
    factor = torch.randn(size, size, generator=generator).double()
    return mean, factor @ factor.mT / size


def blocks(covariance, num_outputs):
    num_data = len(covariance) // num_outputs
    grid = covariance.reshape(num_data, num_outputs, num_data, num_outputs)
    return torch.stack([grid[n, :, n] for n in range(num_data)])


def by_quad(log_prob, mean, variance):
    """E log p(y | f) under f ~ N(mean, variance), by scipy."""
    scale = variance**0.5

    def integrand(z):
        f = torch.tensor([[mean + scale * z]], dtype=torch.float64)
        return log_prob(f).item() * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)

    return scipy.integrate.quad(integrand, -14, 14, epsabs=1e-12, epsrel=1e-12, limit=400)[0]


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (Bernoulli(), [0.0, 1.0]),
        (Poisson(), [0.0, 7.0]),
        (NegativeBinomial(0.4), [0.0, 30.0]),
        (Gaussian(0.3), [-1.0, 2.0]),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("variance", [1e-6, 1.0, 9.0])
def test_expected_log_prob_of_one_output_against_quadrature(likelihood, y, variance):
    mean, y = torch.tensor([0.3, 1.9]).double(), torch.tensor(y).double()
    dist = MultivariateNormal(mean, variance * torch.eye(2).double())
    actual = to_gpytorch(likelihood).expected_log_prob(y, dist)
    for n in range(2):
        expected = by_quad(
            lambda f, n=n: likelihood.log_prob(y[n].reshape(1, 1), f), mean[n].item(), variance
        )
        assert actual[n].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_outputs_that_are_wide_enough_for_any_fixed_rule_to_fail():
    dist = MultivariateNormal(torch.zeros(1).double(), 1e4 * torch.eye(1).double())
    actual = to_gpytorch(Bernoulli()).expected_log_prob(torch.ones(1), dist)
    # E log σ(f) = -E softplus(f), and softplus(f) = relu(f) + log(1 + e^{-|f|})
    step = scipy.integrate.quad(lambda f: np.log1p(np.exp(-f)), 0, 50)[0]
    expected = -100 / np.sqrt(2 * np.pi) - 2 * step / (100 * np.sqrt(2 * np.pi))
    assert actual.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    ("likelihood", "y"),
    [(Categorical(), [0, 3, 2]), (Heteroscedastic(), [[0.5, 1.0], [-1.0, 0.2], [0.0, 0.0]])],
    ids=["categorical", "heteroscedastic"],
)
def test_expected_log_prob_keeps_the_covariance_between_outputs(likelihood, y, interleaved):
    mean, covariance = joint(3, 4)
    given, y = covariance, torch.tensor(y)
    if not interleaved:
        grid = covariance.reshape(3, 4, 3, 4)
        given = grid.permute(1, 0, 3, 2).reshape(12, 12)
    dist = MultitaskMultivariateNormal(mean, given, interleaved=interleaved)
    actual = to_gpytorch(likelihood, num_nodes=4096).expected_log_prob(y, dist)
    checked = likelihood.check_targets(y, (4,), torch.float64)
    scale = torch.linalg.cholesky(blocks(covariance, 4))
    normal = torch.randn(40_000, 3, 4, generator=torch.Generator().manual_seed(1)).double()
    values = likelihood.log_prob(checked, mean + torch.einsum("ncd,snd->snc", scale, normal))
    error = values.std(0) / 40_000**0.5
    assert ((actual - values.mean(0)).abs() < 4 * error).all()


def test_gaussian_noise_is_exact_for_correlated_outputs():
    mean, covariance = joint(5, 2)
    noise = torch.tensor([[0.5, 0.2], [0.2, 0.3]]).double()
    y = torch.randn(5, 2, generator=torch.Generator().manual_seed(3)).double()
    dist = MultitaskMultivariateNormal(mean, covariance)
    actual = to_gpytorch(CorrelatedGaussian(noise)).expected_log_prob(y, dist)
    normal = torch.distributions.MultivariateNormal(mean, noise)
    trace = torch.einsum("cd,ndc->n", noise.inverse(), blocks(covariance, 2))
    torch.testing.assert_close(actual, normal.log_prob(y) - 0.5 * trace, rtol=1e-12, atol=1e-12)


def test_predictions_are_those_of_the_likelihood():
    mean, covariance = joint(4, 3)
    dist = MultitaskMultivariateNormal(mean, covariance)
    likelihood = Categorical()
    wrapped = to_gpytorch(likelihood)
    own = likelihood.predictive(mean, blocks(covariance, 3))
    marginal = wrapped(dist)
    labels = torch.tensor([0, 2, 1, 1])
    torch.testing.assert_close(marginal.mean, own.mean)
    torch.testing.assert_close(marginal.variance, own.variance)
    y = likelihood.check_targets(labels, (3,), torch.float64)
    torch.testing.assert_close(marginal.log_prob(labels), own.log_prob(y))
    torch.testing.assert_close(wrapped.log_marginal(labels, dist), own.log_prob(y))
    draws = marginal.sample((5,), torch.Generator().manual_seed(0))
    assert draws.shape == (5, 4)
    again = marginal.sample(torch.Size([5]), torch.Generator().manual_seed(0))
    assert torch.equal(draws, again)


def test_exposures_come_with_the_targets_and_by_known():
    dist = MultivariateNormal(torch.tensor([0.0, 1.0]).double(), 0.1 * torch.eye(2).double())
    wrapped = to_gpytorch(Poisson(exposure=True))
    pairs = torch.tensor([[1.0, 2.0], [3.0, 0.5]]).double()
    shifted = MultivariateNormal(dist.mean + pairs[:, 1].log(), dist.covariance_matrix)
    expected = to_gpytorch(Poisson()).expected_log_prob(pairs[:, 0], shifted)
    torch.testing.assert_close(wrapped.expected_log_prob(pairs, dist), expected)
    predicted = wrapped(dist, known=pairs[:, 1:])
    torch.testing.assert_close(predicted.mean, pairs[:, 1] * wrapped(dist).mean)
    assert predicted.mean.shape == (2,)
    assert predicted.sample((3,), torch.Generator().manual_seed(0)).shape == (3, 2)


def test_batches_of_models():
    mean, covariance = joint(4, 1)
    stacked = MultivariateNormal(
        torch.stack([mean[:, 0], -mean[:, 0]]), covariance.expand(2, -1, -1)
    )
    wrapped, y = to_gpytorch(Bernoulli()), torch.tensor([0.0, 1.0, 1.0, 0.0])
    expected = [
        wrapped.expected_log_prob(y, MultivariateNormal(m, covariance)) for m in stacked.mean
    ]
    torch.testing.assert_close(wrapped.expected_log_prob(y, stacked), torch.stack(expected))
    assert wrapped(stacked).mean.shape == (2, 4)
    assert wrapped.log_marginal(y, stacked).shape == (2, 4)


def test_latent_samples_give_conditional_distributions():
    f = torch.randn(5, 6, 3, generator=torch.Generator().manual_seed(0)).double()
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    conditional = to_gpytorch(Categorical(), num_outputs=3)(f)
    torch.testing.assert_close(conditional.mean, f.softmax(-1))
    reference = torch.distributions.Categorical(logits=f)
    torch.testing.assert_close(conditional.log_prob(y), reference.log_prob(y))
    assert conditional.sample((2,), torch.Generator().manual_seed(0)).shape == (2, 5, 6)
    single = to_gpytorch(Poisson())(f[..., 0])
    torch.testing.assert_close(single.variance, f[..., 0].exp())
    with pytest.raises(ValueError, match="function_samples"):
        to_gpytorch(Categorical(), num_outputs=4)(f)


def test_nothing_is_left_to_the_base_class_that_pyro_replaces():
    wrapped = type(to_gpytorch(Gaussian()))
    for method in ("expected_log_prob", "log_marginal", "marginal", "forward"):
        assert method in vars(wrapped)


def test_errors_name_the_argument():
    with pytest.raises(TypeError, match=r"likelihood.*GaussianLikelihood"):
        to_gpytorch(gpytorch.likelihoods.GaussianLikelihood())
    dist = MultivariateNormal(torch.zeros(2).double(), torch.eye(2).double())
    with pytest.raises(ValueError, match="observations"):
        to_gpytorch(Gaussian()).expected_log_prob(torch.zeros(3), dist)


class SVGP(gpytorch.models.ApproximateGP):
    """One output, or several that mix independent latent functions."""

    def __init__(self, inducing, num_outputs=None, *, mixing=False):
        batch = torch.Size([] if num_outputs is None else [num_outputs])
        inducing = inducing.expand(*batch, *inducing.shape).clone()
        variational = gpytorch.variational.CholeskyVariationalDistribution(
            inducing.shape[-2], batch_shape=batch
        )
        strategy = gpytorch.variational.VariationalStrategy(self, inducing, variational)
        if mixing:
            strategy = gpytorch.variational.LMCVariationalStrategy(
                strategy, num_tasks=num_outputs, num_latents=num_outputs
            )
        elif num_outputs is not None:
            strategy = gpytorch.variational.IndependentMultitaskVariationalStrategy(
                strategy, num_tasks=num_outputs
            )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
        kernel = gpytorch.kernels.RBFKernel(batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=batch)

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def toy():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 40, dtype=torch.float64).unsqueeze(-1)
    f = 2 * torch.sin(2 * x[:, 0])
    noise = torch.rand(40, generator=generator).double()
    return x, f, noise, generator


def train(model, likelihood, x, y, objective, steps=20):
    torch.manual_seed(0)
    model, likelihood = model.double(), likelihood.double()
    mll = objective(likelihood, model, num_data=len(x))
    parameters = [*model.parameters(), *likelihood.parameters()]
    optimizer = torch.optim.Adam({id(p): p for p in parameters}.values(), lr=0.1)
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimizer.step()
        values.append(-loss.item())
    model.eval()
    return values, likelihood(model(x))


@pytest.mark.parametrize(
    "objective", [gpytorch.mlls.VariationalELBO, gpytorch.mlls.PredictiveLogLikelihood]
)
def test_svgp_learns_labels(objective):
    x, f, noise, _ = toy()
    y = (noise < f.sigmoid()).double()
    values, predicted = train(SVGP(x[::5]), to_gpytorch(Bernoulli()), x, y, objective)
    assert values[-1] > values[0] + 0.05
    assert torch.corrcoef(torch.stack([predicted.mean, f.sigmoid()]))[0, 1] > 0.8


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(3.0)], ids=["poisson", "nb"])
def test_svgp_learns_counts(likelihood):
    x, f, _, generator = toy()
    y = torch.poisson(f.exp(), generator=generator)
    before = [p.detach().clone() for p in likelihood.parameters()]
    objective = gpytorch.mlls.VariationalELBO
    values, predicted = train(SVGP(x[::5]), to_gpytorch(likelihood), x, y, objective)
    assert values[-1] > values[0] + 0.3
    assert torch.corrcoef(torch.stack([predicted.mean, f.exp()]))[0, 1] > 0.8
    assert all((p != b).all() for p, b in zip(likelihood.parameters(), before, strict=True))


@pytest.mark.parametrize("mixing", [True, False], ids=["lmc", "independent"])
def test_multitask_svgp_learns_classes_and_noise(mixing):
    x, f, noise, _ = toy()
    objective = gpytorch.mlls.VariationalELBO
    labels = (f > 0.7).long() + (f > -0.7).long()
    model = SVGP(x[::5], 3, mixing=mixing)
    values, predicted = train(model, to_gpytorch(Categorical()), x, labels, objective)
    assert values[-1] > values[0] + 0.2
    assert (predicted.mean.argmax(-1) == labels).double().mean() > 0.7
    y = f + 0.5 * (noise - 0.5)
    model = SVGP(x[::5], 2, mixing=mixing)
    values, predicted = train(model, to_gpytorch(Heteroscedastic()), x, y, objective)
    assert values[-1] > values[0] + 0.2
    assert predicted.mean.shape == (40, 1)


def test_own_likelihood_in_a_variational_model():
    x, f, noise, _ = toy()
    y = f + 0.5 * (noise - 0.5)

    def log_prob(y, f):
        return -(softplus(y - f) + softplus(f - y)).sum()

    likelihood = to_gpytorch(AutodiffLikelihood(log_prob))
    model = SVGP(x[::5]).double()
    value = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))(model(x), y)
    value.backward()
    assert model.covar_module.raw_outputscale.grad.abs() > 0
