"""Joint log densities of many coupled targets, against one-factor models that are integrated.

For f = m + a u + diag(d) e, p(y) = ∫ N(u) Π_c p(y_c | m_c + a_c u, d_c²) du: one sum over u, of
densities of single targets by adaptive quadrature.
"""

from __future__ import annotations

import math

import pytest
import torch
from predictive_checks import close, generator, latents
from scipy.stats import multivariate_normal

from lingp.likelihoods import (
    Bernoulli,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
)
from lingp.likelihoods.predictives.importance import log_terms, relative_error
from lingp.linalg.psd import psd_root
from lingp.models.joint import _AllRows

ROWS = 4


def one_factor(num_outputs, scale, *, share=0.5, against=0.5, seed=0):
    """Means, loadings and own deviations, (N x C) each; means are off by `against` deviations."""
    draw = generator(seed)
    total = scale * (0.5 + torch.rand(ROWS, num_outputs, generator=draw, dtype=torch.float64))
    signs = torch.randint(2, total.shape, generator=draw) * 2 - 1
    mean = against * total * torch.randn(ROWS, num_outputs, generator=draw, dtype=torch.float64)
    return mean, math.sqrt(share) * total * signs, math.sqrt(1 - share) * total


def covariance_of(loading, own):
    return loading.unsqueeze(-1) * loading.unsqueeze(-2) + torch.diag_embed(own.square())


def integrated(likelihood, y, mean, loading, own, num_nodes=301):
    """log p(y_n), (N,)."""
    u = torch.linspace(-12, 12, num_nodes, dtype=torch.float64)
    centre = (mean + loading * u[:, None, None]).flatten(0, 1)
    each = torch.diag_embed(own.square()).repeat(num_nodes, 1, 1)
    repeated = y.repeat(num_nodes, *[1] * (y.dim() - 1))
    values = likelihood.predictive(centre, each).log_prob(repeated).view(num_nodes, ROWS)
    log_weight = -0.5 * u.square() + math.log(float(u[1] - u[0]) / math.sqrt(2 * math.pi))
    return (values + log_weight[:, None]).logsumexp(0)


def labels(shape, seed=1):
    return torch.randint(2, shape, generator=generator(seed)).double()


CASES = {  # likelihood, outputs, scale of f
    "few labels": (Bernoulli, 3, 3.0),
    "steep labels": (Bernoulli, 5, 340.0),
    "many labels": (Bernoulli, 24, 3.0),
    "many steep labels": (Bernoulli, 24, 340.0),
    "ordinal": (lambda: Ordinal(4), 12, 30.0),
    "student-t": (StudentT, 12, 3.0),
    "poisson": (Poisson, 12, 1.0),
    "negative binomial": (lambda: NegativeBinomial(0.5), 12, 1.0),
}


@torch.no_grad()
@pytest.mark.parametrize("share", [0.2, 0.8])
@pytest.mark.parametrize("name", CASES)
def test_many_coupled_targets(name, share):
    make, num_outputs, scale = CASES[name]
    likelihood = make()
    mean, loading, own = one_factor(num_outputs, scale, share=share, against=1.0)
    y = likelihood.sample(0 * mean, generator=generator(3))
    value = likelihood.predictive(mean, covariance_of(loading, own)).log_prob(y)
    close(value, integrated(likelihood, y, mean, loading, own), rtol=0, atol=0.05)


@torch.no_grad()
def test_labels_of_a_step_have_the_probability_of_a_corner():
    mean, covariance = latents(3, 5, scale=1e5)
    y = labels((3, 5))
    value = Bernoulli().predictive(1e5 * mean, covariance).log_prob(y)
    signs = 2 * y - 1
    exact = [
        multivariate_normal.cdf(
            (s * m).numpy(), cov=(s[:, None] * c * s).numpy(), abseps=1e-9, maxpts=2_000_000
        )
        for s, m, c in zip(signs, 1e5 * mean, covariance, strict=True)
    ]
    close(value, torch.tensor(exact).log(), rtol=0, atol=0.02)


def test_gradients_of_many_steep_labels():
    mean, loading, own = (t.requires_grad_() for t in one_factor(8, 30.0, against=1.0))
    y = labels(mean.shape)
    value = Bernoulli().predictive(mean, covariance_of(loading, own)).log_prob(y).sum()
    expected = integrated(Bernoulli(), y, mean, loading, own).sum()
    parameters = (mean, loading, own)
    found = torch.cat(torch.autograd.grad(value, parameters))
    wanted = torch.cat(torch.autograd.grad(expected, parameters))
    assert (found - wanted).norm() < 0.05 * wanted.norm()


@torch.no_grad()
def test_draws_of_rows_together_and_their_standard_error():
    mean, loading, own = one_factor(12, 30.0, against=1.0)
    y = labels(mean.shape)
    expected = integrated(Bernoulli(), y, mean, loading, own)
    covariance = covariance_of(loading, own)
    for row in range(ROWS):
        rows = _AllRows(Bernoulli(), 3)  # four rows of three outputs
        normal = torch.randn(1000, 12, generator=generator(row), dtype=torch.float64)
        root = psd_root(covariance[row : row + 1])
        terms = log_terms(rows, y[row].view(4, 3), mean[row : row + 1], root, normal)
        value, error = terms.logsumexp(0) - math.log(len(terms)), relative_error(terms, 1000)
        assert error < 0.1
        assert (value - expected[row]).abs() < 5 * error + 1e-3


@torch.no_grad()
def test_single_precision_and_repeatable():
    mean, loading, own = one_factor(8, 30.0)
    covariance, y = covariance_of(loading, own), labels(mean.shape)
    value = Bernoulli().predictive(mean, covariance).log_prob(y)
    assert torch.equal(value, Bernoulli().predictive(mean, covariance).log_prob(y))
    single = Bernoulli().predictive(mean.float(), covariance.float()).log_prob(y.float())
    assert single.dtype == torch.float32
    close(single.double(), value, rtol=0, atol=0.02)


@torch.no_grad()
@pytest.mark.parametrize("rank", [1, 3])
def test_singular_covariances(rank):
    mean, covariance = latents(3, 6, scale=100.0, rank=rank)
    mean = 100 * mean
    y = (mean > 0).double()
    value = Bernoulli().predictive(mean, covariance).log_prob(y)
    draws = Bernoulli().predictive(
        mean, covariance, "monte_carlo", num_samples=200_000, generator=generator()
    )
    close(value, draws.log_prob(y), rtol=0, atol=0.1)
