"""Networks, data and dense Gaussian processes for the kernel tests, all in float64."""

import math
from itertools import pairwise

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import nn
from torch.func import functional_call, jacrev, vmap


def make_network(inputs=3, outputs=1, hidden=(12, 10), seed=0):
    """An MLP in float64, with weights a little larger than torch's: far from linear."""
    widths = [inputs, *hidden]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = []
        for i, o in pairwise(widths):
            layers += [nn.Linear(i, o), nn.Tanh()]
        net = nn.Sequential(*layers, nn.Linear(widths[-1], outputs)).double()
        for p in net.parameters():
            p.data.mul_(1.5)
    return net


def make_data(rows, inputs=3, outputs=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator, dtype=torch.float64)
    y = torch.stack([torch.sin(2 * x.sum(1) + c) for c in range(outputs)], dim=1)
    y = y + 0.1 * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    return x, y.squeeze(1)


def dense_jacobian(net, x):
    """J (N·C x P) by torch.func, differentiable in x."""
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def of_row(values, row):
        return functional_call(net, values, (row.unsqueeze(0),)).reshape(-1)

    parts = vmap(jacrev(of_row), (None, 0))(weights, x)
    return torch.cat([j.flatten(2) for j in parts.values()], dim=2).flatten(0, 1)


class DenseGP:
    """p(y), mean and covariance at test points by the textbook formulas (all rows flattened)."""

    def __init__(self, train_covar, noise, residual):
        n = len(train_covar)
        self.factor = torch.linalg.cholesky(train_covar + noise * torch.eye(n).double())
        self.weights = torch.cholesky_solve(residual.reshape(-1, 1), self.factor)
        fit = residual.reshape(-1) @ self.weights.squeeze(1)
        log_determinant = 2 * self.factor.diagonal().log().sum()
        self.log_marginal_likelihood = -0.5 * (fit + log_determinant + n * math.log(2 * math.pi))

    def posterior(self, cross, test_covar):
        """Mean of f* − m* and covariance, from K*x and K**."""
        half = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False)
        return (cross @ self.weights).squeeze(1), test_covar - half.mT @ half


class ExactModel(gpytorch.models.ExactGP):
    """An ExactGP with any kernel and mean, single-output or multitask."""

    def __init__(self, x, y, likelihood, kernel, mean=None, outputs=1):
        super().__init__(x, y, likelihood)
        zero = gpytorch.means.ZeroMean()
        if outputs > 1:
            zero = gpytorch.means.MultitaskMean(zero, num_tasks=outputs)
        self.mean_module = zero if mean is None else mean
        self.covar_module = kernel
        self.distribution = MultitaskMultivariateNormal if outputs > 1 else MultivariateNormal

    def forward(self, x):
        return self.distribution(self.mean_module(x), self.covar_module(x))
