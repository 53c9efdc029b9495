"""Gaussian noise of every kind."""

from __future__ import annotations

import torch

from likelihood_cases.case import LikelihoodCase
from lingp.likelihoods import CorrelatedGaussian, Gaussian, KnownNoiseGaussian


def normal(*shape):
    return lambda generator, n: torch.randn(n, *shape, generator=generator).double()


def with_noise(*shape):
    """Values beside noise variances over six orders of magnitude."""

    def make(generator, n):
        y = torch.randn(n, *shape, generator=generator).double()
        return torch.stack([y, 10.0 ** (6 * torch.rand(y.shape, generator=generator) - 3)], -1)

    return make


def scaled(sigmas, correlations):
    sigmas = torch.tensor(sigmas, dtype=torch.float64)
    return sigmas.unsqueeze(1) * torch.tensor(correlations, dtype=torch.float64) * sigmas


def inverse_covariance(likelihood, y, f):
    """Λ of the observed targets, by explicit inverses of their block of Σ in units of σ."""
    covariance = likelihood.covariance
    sigmas = covariance.diagonal().sqrt()
    inverses = []
    for row in ~y.isnan():
        index = row.nonzero().squeeze(1)
        block = (covariance / sigmas / sigmas.unsqueeze(1))[index][:, index]
        inverse = torch.zeros_like(covariance)
        inverse[index.unsqueeze(1), index] = torch.linalg.inv(block)
        inverses.append(inverse / sigmas / sigmas.unsqueeze(1))
    return torch.stack(inverses)


_correlations = [[1.0, 0.7, -0.2], [0.7, 1.0, 0.3], [-0.2, 0.3, 1.0]]
_far = torch.tensor([[1e3], [-1e6], [0.0]]).double()

CASES = [
    LikelihoodCase("gaussian", lambda: Gaussian(0.3), (), normal(), missing=True),
    LikelihoodCase(
        "gaussian-1e-12", lambda: Gaussian(1e-12), (1,), normal(1), extremes=[(_far, -_far)]
    ),
    LikelihoodCase(
        "gaussian-1e12", lambda: Gaussian(1e12), (1,), normal(1), extremes=[(_far, -_far)]
    ),
    LikelihoodCase(
        "gaussian-per-output", lambda: Gaussian([0.1, 0.5, 2.0]), (3,), normal(3), missing=True
    ),
    LikelihoodCase(
        "correlated",
        lambda: CorrelatedGaussian(scaled([0.5, 1.0, 2.0], _correlations)),
        (3,),
        normal(3),
        missing=True,
    ),
    LikelihoodCase(
        "correlated-1e6",
        lambda: CorrelatedGaussian(scaled([1.0, 1e3, 1e6], _correlations)),
        (3,),
        normal(3),
        inverse_covariance,
        extremes=[
            (torch.tensor([[1e3, -1e6, 0.0]]).double(), torch.tensor([[0.0, 1e6, 1e3]])),
            (torch.tensor([[1.0, torch.nan, 0.0]]).double(), torch.tensor([[0.0, 1e6, 1e3]])),
        ],
    ),
    LikelihoodCase("known-noise", lambda: KnownNoiseGaussian(), (2,), with_noise(2), missing=True),
    LikelihoodCase(
        "known-and-shared-noise",
        lambda: KnownNoiseGaussian([0.1, 2.0]),
        (2,),
        with_noise(2),
        missing=True,
    ),
    LikelihoodCase(
        "known-noise-extreme",
        lambda: KnownNoiseGaussian(),
        (),
        with_noise(),
        extremes=[(torch.tensor([[1.0, 1e-12], [1e6, 1e12], [1e6, 1e-12]]), -_far)],
    ),
]
