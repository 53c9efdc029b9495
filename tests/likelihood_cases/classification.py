"""Class labels: softmax, logit, ordered classes, tempered likelihoods."""

from __future__ import annotations

import torch

from likelihood_cases.case import LikelihoodCase
from lingp.likelihoods import Bernoulli, Categorical, Gaussian, Ordinal, Tempered


def labels(num_classes, *shape):
    return lambda generator, n: torch.randint(num_classes, (n, *shape), generator=generator)


def normal(*shape):
    return lambda generator, n: torch.randn(n, *shape, generator=generator).double()


def softmax_curvature(likelihood, y, f):
    """diag(p) - p pᵀ for K outputs, one label."""
    p = f.softmax(-1)
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def logit_curvature(likelihood, y, f):
    return torch.diag_embed(torch.sigmoid(f) * torch.sigmoid(-f))


def ordinal_curvature(likelihood, y, f):
    """The variances of logistic noise at both bounds of the class: where a bound is, σ (1 - σ)."""
    infinite = torch.full((1,), torch.inf, dtype=torch.float64)
    bounds = torch.cat([-infinite, likelihood.cutpoints, infinite])
    total = torch.zeros_like(f)
    for bound in (bounds[y.long()], bounds[y.long() + 1]):
        total = total + torch.sigmoid(bound - f) * torch.sigmoid(f - bound)
    return torch.diag_embed(total)


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
_ordered = [(torch.full((len(_single),), float(k)), _single) for k in range(3)]

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
    LikelihoodCase("categorical-sequence", Categorical, (3, 3), labels(3, 3), missing=True),
    LikelihoodCase("categorical-grid", Categorical, (2, 1, 3), labels(3, 2, 1), missing=True),
    LikelihoodCase("bernoulli", Bernoulli, (), labels(2), extremes=_binary, missing=True),
    LikelihoodCase("bernoulli-column", Bernoulli, (1,), labels(2), logit_curvature, _binary),
    LikelihoodCase("bernoulli-labels", Bernoulli, (3,), labels(2, 3), scale=5.0, missing=True),
    LikelihoodCase("bernoulli-grid", Bernoulli, (2, 2), labels(2, 2, 2), missing=True),
    LikelihoodCase("ordinal-3", lambda: Ordinal(3), (), labels(3), extremes=_ordered, missing=True),
    LikelihoodCase(
        "ordinal-by-definition", lambda: Ordinal(3), (1,), labels(3), ordinal_curvature, _ordered
    ),
    LikelihoodCase(
        "ordinal-labels",
        lambda: Ordinal(cutpoints=[-1e3, -0.5, 0.3, 4.0]),
        (2,),
        labels(5, 2),
        extremes=[(torch.tensor([[0, 1], [2, 3], [4, 4]]), _logits[:3, :2])],
        scale=3.0,
        missing=True,
    ),
    LikelihoodCase(
        "ordinal-narrow",
        lambda: Ordinal(cutpoints=[0.0, 1e-9, 1.0]),
        (),
        labels(4),
        extremes=_ordered,
    ),
    LikelihoodCase(
        "tempered-categorical",
        lambda: Tempered(Categorical(), 2.5, learn=True),
        (3,),
        labels(3),
        extremes=_sharp,
        missing=True,
    ),
    LikelihoodCase(
        "tempered-gaussian", lambda: Tempered(Gaussian(0.3), 0.5, learn=True), (2,), normal(2)
    ),
    LikelihoodCase("tempered-ordinal", lambda: Tempered(Ordinal(4), 4.0), (), labels(4)),
]
