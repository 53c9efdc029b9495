"""Likelihoods by automatic differentiation: a user's own, and torch.distributions."""

from __future__ import annotations

import torch
from torch import distributions as D
from torch import nn
from torch.nn.functional import softplus

from likelihood_cases.case import LikelihoodCase
from likelihood_cases.counts import counts
from likelihood_cases.gaussian import normal
from lingp.likelihoods import AutodiffLikelihood, FromDistribution


class Laplace(nn.Module):
    """A smoothed Laplace density with a scale of its own."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, y, f):
        z = (y - f) / self.log_scale.exp()
        return -((1 + z.square()).sqrt() + self.log_scale).sum()


def softmax_log_prob(y, f):
    return f.log_softmax(-1)[y.long()]


def student_log_prob(y, f):
    return torch.distributions.StudentT(4.0, f).log_prob(y).sum()


def student_curvature(likelihood, y, f):
    """-∇² log p where it is positive: |y - f| < 2."""
    squared = (y - f).square()
    return torch.diag_embed((5 * (4 - squared) / (4 + squared).square()).clamp(min=0))


def natural_normal(y, eta):
    first, second = eta
    return (first * y + second * y.square() + first.square() / (4 * second)).sum() + 0.5 * (
        -2 * second
    ).log().sum()


def natural_link(f):
    return torch.stack([f[0], -0.5 * softplus(f[1])]).unsqueeze(-1)


def natural_curvature(likelihood, y, f):
    """(dη/df)ᵀ [[σ², 2μσ²], [2μσ², 4μ²σ² + 2σ⁴]] (dη/df)."""
    variance = 1 / softplus(f[:, 1])
    mean, slope = f[:, 0] * variance, -0.5 * f[:, 1].sigmoid()
    cross = 2 * mean * variance * slope
    last = (4 * mean.square() * variance + 2 * variance.square()) * slope.square()
    return torch.stack([variance, cross, cross, last], -1).reshape(-1, 2, 2)


class GammaNoise(nn.Module):
    """Gamma with mean exp(f) and a shape of its own."""

    def __init__(self):
        super().__init__()
        self.log_shape = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, f):
        shape = self.log_shape.exp()
        return D.Gamma(shape, shape * (-f).exp())


def softmax_curvature(likelihood, y, f):
    p = f.softmax(-1)
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def labels(num_classes):
    return lambda generator, n: torch.randint(num_classes, (n,), generator=generator)


def no_draw(f, generator):
    return f + torch.randn(f.shape, generator=generator, dtype=f.dtype, device=f.device)


def one(f):
    return torch.ones_like(f)


_MOMENTS = {"mean": lambda f: f, "variance": one, "sample": no_draw}
_ONE_TARGET = {
    "mean": lambda f: f[:1],
    "variance": lambda f: one(f[:1]),
    "sample": lambda f, generator: no_draw(f[..., :1], generator),
}

CASES = [
    LikelihoodCase(
        "autodiff-module", lambda: AutodiffLikelihood(Laplace(), **_MOMENTS), (2,), normal(2)
    ),
    LikelihoodCase(
        "autodiff-softmax",
        lambda: AutodiffLikelihood(softmax_log_prob, target_shape=(), **_ONE_TARGET),
        (3,),
        labels(3),
        extremes=[(torch.tensor([0, 1]), torch.tensor([[1e3, 0.0, -1e3], [1.0, 1.0, 1.0]]))],
    ),
    LikelihoodCase(
        "autodiff-clamped",
        lambda: AutodiffLikelihood(student_log_prob, **_MOMENTS),
        (2,),
        normal(2),
        student_curvature,
        scale=3.0,
    ),
    LikelihoodCase(
        "autodiff-gauss-newton",
        lambda: AutodiffLikelihood(
            natural_normal,
            link=natural_link,
            target_shape=1,
            curvature="gauss_newton",
            **_ONE_TARGET,
        ),
        (2,),
        normal(1),
        natural_curvature,
    ),
    LikelihoodCase(
        "autodiff-own-curvature",
        lambda: AutodiffLikelihood(
            lambda y, f: -0.5 * (y - f).square().sum(),
            curvature=lambda y, f: torch.eye(3).to(f) + 0 * f,
            **_MOMENTS,
        ),
        (3,),
        normal(3),
    ),
    LikelihoodCase(
        "distribution-poisson",
        lambda: FromDistribution(lambda f: D.Poisson(f.exp())),
        (2,),
        counts(2),
        lambda likelihood, y, f: torch.diag_embed(f.exp()),
    ),
    LikelihoodCase(
        "distribution-bernoulli",
        lambda: FromDistribution(lambda f: D.Bernoulli(logits=f)),
        (2,),
        counts(2, high=2),
        lambda likelihood, y, f: torch.diag_embed(f.sigmoid() * (-f).sigmoid()),
        extremes=[(torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1e3, -1e3], [1e3, 30.0]]))],
    ),
    LikelihoodCase(
        "distribution-categorical",
        lambda: FromDistribution(lambda f: D.Categorical(logits=f)),
        (4,),
        labels(4),
        softmax_curvature,
        extremes=[(torch.tensor([0, 1]), torch.tensor([[1e3, 0, -1e3, 0], [1.0, 1, 1, 1]]))],
    ),
    LikelihoodCase(
        "distribution-normal",
        lambda: FromDistribution(lambda f: D.Normal(f[..., :1], f[..., 1:].exp())),
        (2,),
        normal(1),
        lambda likelihood, y, f: torch.diag_embed(
            torch.stack([(-2 * f[:, 1]).exp(), 2 * torch.ones_like(f[:, 1])], -1)
        ),
    ),
    LikelihoodCase(
        "distribution-gamma",
        lambda: FromDistribution(GammaNoise()),
        (),
        lambda generator, n: 0.1 + torch.rand(n, generator=generator),
        lambda likelihood, y, f: likelihood.function.log_shape.exp().expand(len(f), 1, 1),
    ),
    LikelihoodCase(
        "distribution-student-t",
        lambda: FromDistribution(lambda f: D.StudentT(4.0, f)),
        (2,),
        normal(2),
        student_curvature,
        scale=3.0,
    ),
]
