"""Class labels: softmax, logit, ordered classes, tempered likelihoods."""

from __future__ import annotations

import torch

from likelihood_cases.case import LikelihoodCase
from lingp.likelihoods import Bernoulli, Categorical


def labels(num_classes, *shape):
    return lambda generator, n: torch.randint(num_classes, (n, *shape), generator=generator)


def softmax_curvature(likelihood, y, f):
    """diag(p) - p pᵀ for K outputs, one label."""
    p = f.softmax(-1)
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def logit_curvature(likelihood, y, f):
    return torch.diag_embed(torch.sigmoid(f) * torch.sigmoid(-f))


_logits = torch.tensor(
    [
        [1e3, -1e3, 0.0],
        [-1e3, 1e3, 0.0],
        [0.0, 0.0, 1e3],
        [1e3, 1e3, 1e3],
        [-1e3, -1e3, 1e3],
        [700.0, -45.0, 0.0],
        [40.0, 0.0, 0.0],
    ]
).double()
_sharp = [(torch.full((len(_logits),), k), _logits) for k in range(3)]
_single = torch.tensor([1e3, -1e3, 0.0, 745.0, -745.0, 1e6, -1e6]).double().unsqueeze(-1)
_binary = [(torch.full((len(_single),), float(k)), _single) for k in range(2)]

CASES = [
    LikelihoodCase(
        "categorical-2",
        Categorical,
        (2,),
        labels(2),
        extremes=[(torch.tensor([0, 1, 0]), _logits[:3, :2])],
        curvature=softmax_curvature,
        missing=True,
    ),
    LikelihoodCase("categorical-3", Categorical, (3,), labels(3), extremes=_sharp, missing=True),
    LikelihoodCase(
        "categorical-3-by-definition",
        Categorical,
        (3,),
        labels(3),
        softmax_curvature,
        extremes=_sharp,
    ),
    LikelihoodCase("categorical-column", Categorical, (3,), labels(3, 1)),
    LikelihoodCase("categorical-10", Categorical, (10,), labels(10), scale=10.0, missing=True),
    LikelihoodCase(
        "categorical-all-equal", Categorical, (3,), lambda generator, n: torch.ones(n), scale=3.0
    ),
    LikelihoodCase("categorical-sequence", Categorical, (4, 3), labels(3, 4), missing=True),
    LikelihoodCase("categorical-grid", Categorical, (2, 2, 3), labels(3, 2, 2), missing=True),
    LikelihoodCase("bernoulli", Bernoulli, (), labels(2), extremes=_binary, missing=True),
    LikelihoodCase("bernoulli-column", Bernoulli, (1,), labels(2), logit_curvature, _binary),
    LikelihoodCase("bernoulli-labels", Bernoulli, (3,), labels(2, 3), scale=5.0, missing=True),
    LikelihoodCase("bernoulli-grid", Bernoulli, (2, 2), labels(2, 2, 2), missing=True),
]
