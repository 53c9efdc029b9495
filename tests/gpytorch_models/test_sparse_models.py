"""NTKernel under GPyTorch's inducing point kernel and variational strategies."""

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from kernel_cases import DenseGP, ExactModel, dense_jacobian, make_data, make_network
from torch import nn

from lingp.gpytorch_models import NetworkMean, NTKernel

PRECISION, NOISE = 0.5, 1 / 64


def gaussian_likelihood():
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    return likelihood


def sgpr(net, x, y, inducing):
    likelihood = gaussian_likelihood()
    kernel = gpytorch.kernels.InducingPointKernel(
        NTKernel.from_model(net, prior=PRECISION), inducing.clone(), likelihood
    )
    return ExactModel(x, y, likelihood, kernel), likelihood


def test_inducing_points_at_the_data_are_exact():
    """K(x, Z) K(Z, Z)⁻¹ K(Z, x) = K(x, x) for Z = x: so are likelihood and predictions."""
    net = make_network()
    x, y = make_data(25)
    x_test, _ = make_data(6, seed=1)
    model, likelihood = sgpr(net, x, y, x)
    j, k = dense_jacobian(net, x), dense_jacobian(net, x_test)
    dense = DenseGP(j @ j.mT / PRECISION, NOISE, y)
    value = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(x), y) * len(y)
    torch.testing.assert_close(value, dense.log_marginal_likelihood, rtol=1e-5, atol=1e-5)
    model.eval()
    mean, covar = dense.posterior(k @ j.mT / PRECISION, k @ k.mT / PRECISION)
    with torch.no_grad():
        f = model(x_test)
    torch.testing.assert_close(f.mean, mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(f.variance, covar.diagonal(), rtol=1e-3, atol=1e-4)


def test_gradients_for_inducing_points():
    """Of the whole SGPR objective, against the same objective from dense Jacobians."""
    net = make_network()
    x, y = make_data(40)
    inducing, _ = make_data(8, seed=2)
    model, likelihood = sgpr(net, x, y, inducing)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    objective(model(x), y).backward()

    z = inducing.clone().requires_grad_(True)
    j, k = dense_jacobian(net, x), dense_jacobian(net, z)
    factor = torch.linalg.cholesky(k @ k.mT / PRECISION)
    half = torch.linalg.solve_triangular(factor, k @ j.mT / PRECISION, upper=False)
    fit = MultivariateNormal(
        torch.zeros(40).double(), half.mT @ half + NOISE * torch.eye(40).double()
    )
    gap = (j.square().sum(1) / PRECISION - half.square().sum(0)).sum() / (2 * NOISE)
    expected = (fit.log_prob(y) - gap) / 40
    torch.testing.assert_close(objective(model(x), y), expected, rtol=1e-6, atol=1e-7)
    (gradient,) = torch.autograd.grad(expected, z)
    found = model.covar_module.inducing_points.grad
    torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-7)
    assert model.covar_module.base_kernel.prior.raw_precision.grad is not None


class VariationalModel(gpytorch.models.ApproximateGP):
    def __init__(self, net, inducing, strategy=gpytorch.variational.VariationalStrategy, **options):
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(strategy(self, inducing.clone(), distribution.double(), **options))
        self.covar_module = NTKernel.from_model(net, prior=PRECISION)
        self.mean_module = NetworkMean(self.covar_module)

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize(
    "strategy",
    [
        gpytorch.variational.VariationalStrategy,
        gpytorch.variational.UnwhitenedVariationalStrategy,
        gpytorch.variational.CiqVariationalStrategy,
    ],
)
def test_variational_strategies_learn(strategy):
    net = make_network()
    x, y = make_data(60)
    options = {"learn_inducing_locations": True}
    model = VariationalModel(net, make_data(10, seed=2)[0], strategy, **options)
    if strategy is gpytorch.variational.CiqVariationalStrategy:
        distribution = gpytorch.variational.NaturalVariationalDistribution(10)
        model.variational_strategy._variational_distribution = distribution.double()
    likelihood = gaussian_likelihood()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.02)
    losses = []
    for step in range(12):
        rows = torch.arange(60).roll(step * 20)[:30]
        optimizer.zero_grad()
        loss = -objective(model(x[rows]), y[rows])
        loss.backward()
        if step == 0:
            assert model.variational_strategy.inducing_points.grad.abs().max() > 0
            assert model.covar_module.prior.raw_precision.grad != 0
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-3:]) < sum(losses[:3])
    model.eval()
    with torch.no_grad():
        f = model(make_data(5, seed=3)[0])
    assert bool((f.variance > 0).all())


def test_variational_optimum_is_the_exact_posterior():
    """With Z at the data and q(u) set to the exact posterior, the strategy gives it back."""
    net = make_network()
    x, y = make_data(20)
    x_test, _ = make_data(6, seed=1)
    model = VariationalModel(net, x, jitter_val=1e-10, learn_inducing_locations=False)
    j, k = dense_jacobian(net, x), dense_jacobian(net, x_test)
    gram = j @ j.mT / PRECISION
    residual = y - net(x).squeeze(1).detach()
    dense = DenseGP(gram, NOISE, residual)
    mean, covar = dense.posterior(gram, gram)
    factor = torch.linalg.cholesky(gram)  # whitened: u = L v
    whitened = torch.linalg.solve_triangular(factor, mean.unsqueeze(1), upper=False).squeeze(1)
    half = torch.linalg.solve_triangular(factor, covar, upper=False)
    spread = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    variational = model.variational_strategy._variational_distribution
    variational.variational_mean.data = whitened
    variational.chol_variational_covar.data = torch.linalg.cholesky(spread)
    model.variational_strategy.variational_params_initialized.fill_(1)
    model.eval()
    with torch.no_grad():
        f = model(x_test)
        network = net(x_test).squeeze(1)
    mean, covar = dense.posterior(k @ j.mT / PRECISION, k @ k.mT / PRECISION)
    torch.testing.assert_close(f.mean, mean + network, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(f.covariance_matrix, covar, rtol=1e-4, atol=1e-5)


def test_variational_with_image_inputs():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 1)).double()
    x = torch.randn(30, 16).double()
    model = VariationalModel(net, x[:6])
    model.covar_module = NTKernel.from_model(net, input_shape=(1, 4, 4))
    model.mean_module = NetworkMean(model.covar_module)
    likelihood = gaussian_likelihood()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=30)
    (-objective(model(x), x.sum(1))).backward()
    assert model.variational_strategy.inducing_points.grad.abs().max() > 0
