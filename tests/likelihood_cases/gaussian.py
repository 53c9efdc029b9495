"""Gaussian noise of every kind."""

from __future__ import annotations

import torch

from likelihood_cases.case import LikelihoodCase
from lingp.likelihoods import Gaussian


def normal(*shape):
    return lambda generator, n: torch.randn(n, *shape, generator=generator).double()


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
]
