"""The posterior's covariance operator: linear_operator's own test class, and singular matrices."""

from __future__ import annotations

import unittest

import gpytorch
import pytest
import torch
from linear_operator.test.linear_operator_test_case import LinearOperatorTestCase
from torch import nn

from lingp.likelihoods import Gaussian
from lingp.linalg.psd import square_root
from lingp.models import LinearizedGP
from lingp.models.covariance import PosteriorCovariance


def matrix(size=5, rank=5):
    root = torch.randn(size, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return root @ root.mT


class TestPosteriorCovariance(LinearOperatorTestCase, unittest.TestCase):
    seed = 0
    should_test_sample = True
    should_call_cg = False  # dense Cholesky at every size
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False

    def create_linear_op(self):
        return PosteriorCovariance((matrix() + torch.eye(5)).float().requires_grad_())

    def evaluate_linear_op(self, linear_op):
        return linear_op.tensor


@pytest.mark.parametrize("rank", [0, 1, 3, 8])
def test_square_root_of_any_rank(rank):
    covariance = matrix(8, rank) if rank else torch.zeros(8, 8, dtype=torch.float64)
    root = square_root(covariance)
    assert root.shape == (8, 8)
    torch.testing.assert_close(root @ root.mT, covariance, rtol=1e-10, atol=1e-12)


def test_square_root_of_what_rounding_has_made_indefinite():
    covariance = matrix(8, 2) - 1e-9 * torch.eye(8, dtype=torch.float64)
    root = square_root(covariance)
    torch.testing.assert_close(root @ root.mT, covariance, rtol=0, atol=1e-8)


@pytest.fixture(scope="module")
def gp():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 2, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    return LinearizedGP(net, Gaussian(0.1)).fit(x, x.sin())


def test_posterior_does_what_gpytorch_distributions_do(gp):
    x = torch.linspace(-1, 1, 14, dtype=torch.float64).view(7, 2)
    posterior = gp.posterior(x)
    covariance = posterior.covariance_matrix
    close = torch.testing.assert_close
    assert isinstance(posterior[2:5], gpytorch.distributions.MultitaskMultivariateNormal)
    close(posterior[2:5].covariance_matrix, covariance[4:10, 4:10])
    close(posterior[:, 1].covariance_matrix, covariance[1::2, 1::2])
    close(posterior[3].covariance_matrix, covariance[6:8, 6:8])
    lower, upper = posterior.confidence_region()
    close(upper - lower, 4 * posterior.variance.sqrt())
    close((posterior * 2.0).covariance_matrix, 4.0 * covariance)
    noisy = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2, rank=0).double()
    noisy.noise, noisy.task_noises = 0.1, torch.tensor([0.2, 0.3])
    total = covariance + torch.diag(torch.tensor([0.3, 0.4], dtype=torch.float64).repeat(7))
    close(noisy(posterior).covariance_matrix.detach(), total)
    exact = torch.distributions.MultivariateNormal(posterior.mean.flatten(), total)
    y = posterior.mean + 0.1
    close(noisy(posterior).log_prob(y).detach(), exact.log_prob(y.flatten()))


@pytest.mark.parametrize("rows", [1, 900])
def test_samples_are_exact_at_every_size(gp, rows):
    """linear_operator alone would go through a low-rank Lanczos root above 800 rows."""
    grid = torch.linspace(-3, 3, rows, dtype=torch.float64)
    posterior = gp.posterior(torch.stack([grid, grid.cos()], 1))
    root = posterior.lazy_covariance_matrix.root_decomposition().root.to_dense()
    assert root.shape == (2 * rows, 2 * rows)
    error = (root @ root.mT - posterior.covariance_matrix).abs().max()
    assert error < 1e-10 * posterior.covariance_matrix.max()
    assert torch.isfinite(posterior.rsample()).all()
