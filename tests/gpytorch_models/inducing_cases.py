"""Networks, data, and the textbook formulas of sparse GPs, dense and in float64."""

import math

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.mlls import VariationalELBO
from torch import nn
from torch.func import functional_call, jacrev, vmap

from lingp.gpytorch_models import LinearizedSVGP, NetworkMean, NTKernel

PRECISION = 0.5
NOISE = 1 / 64  # exact in float32, in which GPyTorch reads Python numbers


def make_net(num_outputs=1, num_inputs=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(num_inputs, 10), nn.Tanh(), nn.Linear(10, num_outputs)]
    return nn.Sequential(*layers).double()


def make_data(rows, num_outputs=1, seed=0):
    """Inputs (N x 3) and targets (N), or (N x C)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    y = torch.stack([torch.sin(2 * x.sum(1) + c) for c in range(num_outputs)], dim=1)
    y = y + 0.1 * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    return x, y.squeeze(1)


def make_likelihood(num_outputs=1):
    """Gaussian noise, of another variance for each output."""
    if num_outputs == 1:
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = NOISE
        return likelihood
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_outputs).double()
    likelihood.noise = NOISE
    likelihood.task_noises = torch.tensor([2.0 ** -(3 + c) for c in range(num_outputs)])
    return likelihood


def noise_of(likelihood, rows):
    """Variances, (N·C,)."""
    noise = likelihood.noise.detach()
    if hasattr(likelihood, "task_noises"):
        noise = noise + likelihood.task_noises.detach()
    return noise.repeat(rows)


def dense_jacobian(net, x):
    """J (N·C x P) by torch.func."""
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def of_row(values, row):
        return functional_call(net, values, (row.unsqueeze(0),)).squeeze(0)

    parts = vmap(jacrev(of_row), (None, 0))(weights, x)
    return torch.cat([j.flatten(2) for j in parts.values()], dim=2).flatten(0, 1).detach()


class Regression(gpytorch.models.ExactGP):
    """A linearised network around its weights, with any kernel made from its NTKernel."""

    def __init__(self, x, y, likelihood, net, wrap=lambda kernel: kernel, mean=NetworkMean):
        super().__init__(x, y, likelihood)
        kernel = NTKernel.from_model(net, prior=PRECISION)
        self.mean_module = mean(kernel)
        self.covar_module = wrap(kernel)

    def forward(self, x):
        mean, covariance = self.mean_module(x), self.covar_module(x)
        several = mean.dim() > 1
        return (MultitaskMultivariateNormal if several else MultivariateNormal)(mean, covariance)


def make_svgp(z, num_outputs=1, **options):
    return LinearizedSVGP(NTKernel.from_model(make_net(num_outputs), prior=PRECISION), z, **options)


def set_whitened(model, mean, covariance):
    """Make N(mean, covariance) the distribution of v."""
    distribution = model.variational_strategy._variational_distribution
    distribution.variational_mean.data.copy_(mean)
    distribution.chol_variational_covar.data.copy_(torch.linalg.cholesky(covariance))


def some_whitened(size):
    generator = torch.Generator().manual_seed(7)
    mean = torch.randn(size, generator=generator, dtype=torch.float64)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return mean, root @ root.mT / size + 0.1 * torch.eye(size, dtype=torch.float64)


def elbo(model, likelihood, x, y, objective=VariationalELBO):
    """Summed over the data, where GPyTorch's is their mean."""
    return objective(likelihood, model, num_data=len(y))(model(x), y) * len(y)


class Titsias:
    """The bound, the best q(u) and its predictions (Titsias 2009), from dense matrices.

    K(Z, Z) is inverted by `torch.linalg.solve`: Z must be few and apart.
    """

    def __init__(self, net, x, y, z, noise, precision=PRECISION):
        self.net, self.z, self.noise, self.precision = net, z, noise, precision
        self.kzz, self.kxz = self._kernel(z, z), self._kernel(x, z)
        self.kxx = self._kernel(x, x)
        with torch.no_grad():
            self.residual = y.flatten() - net(x).flatten()
        self.q = self.kxz @ torch.linalg.solve(self.kzz, self.kxz.mT)
        weighted = self.kxz.mT / noise  # K_Zx D⁻¹
        self.inner = self.kzz + weighted @ self.kxz
        self.right = weighted @ self.residual

    def _kernel(self, a, b):
        return dense_jacobian(self.net, a) @ dense_jacobian(self.net, b).mT / self.precision

    def bound(self):
        covariance = self.q + self.noise.diag()
        fit = torch.distributions.MultivariateNormal(torch.zeros_like(self.noise), covariance)
        trace = ((self.kxx - self.q).diagonal() / self.noise).sum()
        return fit.log_prob(self.residual) - 0.5 * trace

    def predict(self, x):
        """Mean and covariance of f at x, (n·C) and (n·C x n·C)."""
        cross = self._kernel(x, self.z)
        with torch.no_grad():
            mean = self.net(x).flatten() + cross @ torch.linalg.solve(self.inner, self.right)
        nystrom = cross @ torch.linalg.solve(self.kzz, cross.mT)
        return mean, self._kernel(x, x) - nystrom + cross @ torch.linalg.solve(self.inner, cross.mT)

    def best_whitened(self):
        """Mean and covariance of v, u = L v, under the best q."""
        factor = torch.linalg.cholesky(self.kzz)
        mean = factor.mT @ torch.linalg.solve(self.inner, self.right)
        return mean, factor.mT @ torch.linalg.solve(self.inner, factor)

    def moments(self, mean, covariance):
        """Mean − m and covariance of f at the data for q(v) = N(mean, covariance)."""
        factor = torch.linalg.cholesky(self.kzz)
        weights = torch.linalg.solve(self.kzz, self.kxz.mT).mT  # K_xZ K_ZZ⁻¹
        spread = factor @ covariance @ factor.mT
        return weights @ factor @ mean, self.kxx - self.q + weights @ spread @ weights.mT

    def divergence(self, mean, covariance):
        """KL(q(u) ‖ p(u))."""
        factor = torch.linalg.cholesky(self.kzz)
        normal = torch.distributions.MultivariateNormal
        q = normal(factor @ mean, factor @ covariance @ factor.mT)
        return torch.distributions.kl_divergence(q, normal(torch.zeros_like(mean), self.kzz))

    def expected_log_prob(self, mean, covariance):
        """E_q log p(y | f), summed over the data."""
        shift, spread = self.moments(mean, covariance)
        square = (self.residual - shift).square() + spread.diagonal()
        return -0.5 * (square / self.noise + self.noise.log() + math.log(2 * math.pi)).sum()


def central_difference(function, at, direction, step=1e-4):
    """Derivative along a direction, with an error of step⁴."""
    with torch.no_grad():
        one, two = (
            (function(at + h * direction) - function(at - h * direction)) / (2 * h)
            for h in (step, 2 * step)
        )
    return (4 * one - two) / 3
