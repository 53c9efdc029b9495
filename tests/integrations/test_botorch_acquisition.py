"""Samples, acquisition functions and their optimisers, on the BoTorch model."""

import pytest
import torch
from botorch_cases import D, N, fitted, rows, values

pytest.importorskip("botorch", reason="BoTorch is not installed")

from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.generation import MaxPosteriorSampling
from botorch.models import ModelList
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.list_sampler import ListSampler

from lingp.integrations.botorch import LinearizedGPModel
from lingp.linalg.psd import lower_root


@pytest.mark.parametrize("requires_grad", [False, True])
def test_samples_where_the_covariance_is_singular(requires_grad):
    """More values than weights, and a point twice: no Cholesky factor, yet samples."""
    model = LinearizedGPModel(fitted(inference="weight_space"))  # of 31 weights
    x = rows(1, 40, seed=12)
    x[0, 1] = x[0, 0]
    x.requires_grad_(requires_grad)
    posterior = model.posterior(x)
    draws = SobolQMCNormalSampler(torch.Size([4096]), seed=0)(posterior)
    assert draws.shape == (4096, 1, 40, 1)
    # the root is of S + ε I, with ε < 1e-11: draws at one point differ by sqrt(2 ε) at most
    torch.testing.assert_close(draws[..., 0, :], draws[..., 1, :], rtol=0, atol=1e-4)
    spread = draws.detach().var(0).squeeze()
    torch.testing.assert_close(spread, posterior.variance.detach().squeeze(), rtol=0.05, atol=1e-4)
    if requires_grad:
        draws.amax(2).mean().backward()
        assert torch.isfinite(x.grad).all()


def test_root_of_matrices_of_any_rank():
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(3, 8, 4, generator=generator, dtype=torch.float64)
    half[1] = 0
    matrix = half @ half.mT
    root = lower_root(matrix)
    torch.testing.assert_close(root @ root.mT, matrix, rtol=1e-9, atol=1e-9)
    assert lower_root(matrix[:, :0, :0]).shape == (3, 0, 0)


def test_posterior_transform():
    model, x = LinearizedGPModel(fitted(2)), rows(2, 3, seed=13)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    scalar = model.posterior(x, posterior_transform=ScalarizedPosteriorTransform(weights))
    whole = model.posterior(x)
    torch.testing.assert_close(scalar.mean.squeeze(-1), whole.mean @ weights)
    blocks = whole.distribution.covariance_matrix.view(2, 3, 2, 3, 2)
    expected = torch.einsum("bicjd,c,d->bij", blocks, weights, weights)
    torch.testing.assert_close(scalar.distribution.covariance_matrix, expected)


def test_acquisition_functions_are_optimised():
    model, x = LinearizedGPModel(fitted()), rows(N)
    bounds = torch.stack([torch.zeros(D), torch.ones(D)]).double()
    best = values(x).max()
    for acquisition, q in (
        (LogExpectedImprovement(model, best), 1),
        (qLogExpectedImprovement(model, best, SobolQMCNormalSampler(torch.Size([16]), seed=0)), 2),
        (qLogNoisyExpectedImprovement(model, x, SobolQMCNormalSampler(torch.Size([4]), seed=0)), 1),
        (qUpperConfidenceBound(model, 0.2), 2),
        (qKnowledgeGradient(model, num_fantasies=2), 1),
    ):
        found, value = optimize_acqf(
            acquisition,
            bounds,
            q=q,
            num_restarts=2,
            raw_samples=4,
            options={"maxiter": 5, "seed": 0},
        )
        assert found.shape == (q, D)
        assert torch.isfinite(value)


def test_optimising_reaches_the_largest_mean_on_a_grid():
    model = LinearizedGPModel(fitted())
    bounds = torch.stack([torch.zeros(D), torch.ones(D)]).double()
    _, value = optimize_acqf(PosteriorMean(model), bounds, q=1, num_restarts=8, raw_samples=64)
    axis = torch.linspace(0, 1, 15, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis, axis)
    assert value >= model.posterior(grid).mean.max() - 1e-9


def test_thompson_sampling_and_lists():
    model, x = LinearizedGPModel(fitted()), rows(20, seed=14)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert MaxPosteriorSampling(model)(x, num_samples=2).shape == (2, D)
    both = ModelList(model, LinearizedGPModel(fitted(2)).subset_output([1]))
    assert both.posterior(rows(2, 3)).mean.shape == (2, 3, 2)
    hypervolume = qLogNoisyExpectedHypervolumeImprovement(
        both,
        ref_point=[-5.0, -5.0],
        X_baseline=rows(4),
        prune_baseline=False,
        sampler=ListSampler(*(SobolQMCNormalSampler(torch.Size([4]), seed=i) for i in range(2))),
        cache_root=False,
    )
    x = rows(2, 1, seed=15).requires_grad_()
    hypervolume(x).sum().backward()
    assert torch.isfinite(x.grad).all()
