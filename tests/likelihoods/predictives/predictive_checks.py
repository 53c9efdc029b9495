"""Properties every predictive has, and random latents to test them on."""

from __future__ import annotations

import torch


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def latents(num_data, num_outputs, *, seed=0, scale=1.0, rank=None, dtype=torch.float64):
    """Means (N x C) and covariances (N x C x C) of a given rank."""
    draw = generator(seed)
    mean = torch.randn(num_data, num_outputs, generator=draw, dtype=torch.float64)
    root = torch.randn(
        num_data, num_outputs, rank or num_outputs, generator=draw, dtype=torch.float64
    )
    root = scale * root / (rank or num_outputs) ** 0.5
    return mean.to(dtype), (root @ root.mT).to(dtype)


def close(actual, expected, rtol=1e-10, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def check_rows_are_independent(make, mean, covariance, y):
    """A row's results don't depend on the rows beside it."""
    together = make(mean, covariance)
    for row in range(len(mean)):
        alone = make(mean[row : row + 1], covariance[row : row + 1])
        for name in ("mean", "epistemic_variance", "aleatoric_variance"):
            close(getattr(together, name)[row : row + 1], getattr(alone, name))
        close(together.log_prob(y)[row : row + 1], alone.log_prob(y[row : row + 1]), rtol=1e-9)


def check_draws_agree(predictive, indicators=None, num_samples=40_000, seed=1):
    """Mean and variance of draws of y are those of the predictive, by standard error."""
    draws = predictive.sample(num_samples, generator(seed))
    assert torch.equal(draws, predictive.sample(num_samples, generator(seed)))
    if indicators is not None:
        draws = indicators(draws)
    centred = draws - predictive.mean
    error = centred.mean(0) / (centred.std(0) / num_samples**0.5 + 1e-12)
    assert error.abs().max() < 4.5
    squares = centred.square()
    error = (squares.mean(0) - predictive.variance) / (squares.std(0) / num_samples**0.5 + 1e-9)
    assert error.abs().max() < 4.5


def check_global_randomness_is_left_alone(make):
    """`make()` computes everything deterministic about a predictive."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    make()
    assert torch.equal(before, torch.get_rng_state())
