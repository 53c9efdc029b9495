"""Counts: Poisson, binomial, negative binomial."""

from __future__ import annotations

import torch

from likelihood_cases.case import LikelihoodCase
from lingp.likelihoods import Binomial, NegativeBinomial, Poisson


def counts(*shape, high=9):
    return lambda generator, n: torch.randint(0, high, (n, *shape), generator=generator)


def with_exposure(*shape):
    def draw(generator, n):
        exposure = 0.1 + 3 * torch.rand(n, *shape, generator=generator).double()
        return torch.stack([counts(*shape)(generator, n).double(), exposure], -1)

    return draw


def with_trials(*shape):
    def draw(generator, n):
        trials = torch.randint(0, 9, (n, *shape), generator=generator)
        share = torch.rand(n, *shape, generator=generator)
        return torch.stack([(share * (trials + 1)).floor().long().clamp(max=trials), trials], -1)

    return draw


_F = torch.tensor([-1e3, -50.0, 0.0, 13.8, 39.9, 40.5, 1e3]).double()
_NONE, _MANY = torch.zeros(len(_F)), torch.full((len(_F),), 1e6)
_COUNTS = [(_NONE, _F[:, None]), (_MANY, _F[:, None])]
_TRIALS = [
    (torch.stack([successes, _MANY], -1), _F[:, None]) for successes in (_NONE, _MANY, 0.5 * _MANY)
] + [(torch.zeros(1, 2), torch.tensor([[1e3]]))]


def _exposed(exposure):
    return [(torch.stack([y, torch.full_like(y, exposure)], -1), f) for y, f in _COUNTS]


def sigmoid_slope(x):
    """σ(x) σ(-x)."""
    tail = (-x.abs()).exp()
    return tail / (1 + tail).square()


def poisson_curvature(likelihood, y, f):
    """exp(η), constant above 40: torch.func differentiates expm1(x) as expm1(x) + 1."""
    if likelihood.has_known:
        f = f + y[..., 1].log()
    return torch.diag_embed(f.clamp(max=40.0).exp())


def binomial_curvature(likelihood, y, f):
    """n σ(f) σ(-f): torch.func's own second derivative of logsigmoid is off by 1e-10 here."""
    return torch.diag_embed(y[..., 1] * sigmoid_slope(f))


def negative_binomial_curvature(likelihood, y, f):
    """(y + s) σ(u) σ(-u), u = f + log exposure - log s."""
    alpha = likelihood.dispersion
    if likelihood.has_known:
        y, exposure = y.unbind(-1)
        f = f + exposure.log()
    return torch.diag_embed((y + 1 / alpha) * sigmoid_slope(f + alpha.log()))


CASES = [
    LikelihoodCase(
        "poisson", Poisson, (), counts(), poisson_curvature, extremes=_COUNTS, missing=True
    ),
    LikelihoodCase(
        "poisson-exposure",
        lambda: Poisson(exposure=True),
        (2,),
        with_exposure(2),
        missing=True,
    ),
    LikelihoodCase(
        "poisson-exposure-1",
        lambda: Poisson(exposure=True),
        (),
        with_exposure(),
        poisson_curvature,
        extremes=[*_exposed(1e-6), *_exposed(1e5)],
    ),
    LikelihoodCase("binomial-5", lambda: Binomial(5), (3,), counts(3, high=6), missing=True),
    LikelihoodCase(
        "binomial-trials",
        Binomial,
        (),
        with_trials(),
        binomial_curvature,
        extremes=_TRIALS,
        missing=True,
    ),
    LikelihoodCase("binomial-trials-2", Binomial, (2,), with_trials(2), missing=True),
    LikelihoodCase(
        "negative-binomial",
        NegativeBinomial,
        (),
        counts(),
        negative_binomial_curvature,
        extremes=_COUNTS,
        missing=True,
    ),
    LikelihoodCase(
        "negative-binomial-per-output",
        lambda: NegativeBinomial([0.1, 30.0]),
        (2,),
        counts(2),
        missing=True,
    ),
    LikelihoodCase(
        "negative-binomial-1e-9",
        lambda: NegativeBinomial(1e-9),
        (1,),
        counts(1),
        negative_binomial_curvature,
        extremes=_COUNTS,
    ),
    LikelihoodCase(
        "negative-binomial-1e6",
        lambda: NegativeBinomial(1e6),
        (1,),
        counts(1),
        negative_binomial_curvature,
        extremes=_COUNTS,
    ),
    LikelihoodCase(
        "negative-binomial-exposure",
        lambda: NegativeBinomial(0.3, exposure=True),
        (),
        with_exposure(),
        negative_binomial_curvature,
        extremes=[*_exposed(1e-6), *_exposed(1e5)],
        missing=True,
    ),
]
