"""Fisher information of torch.distributions families, as the Hessian of a divergence.

    F(f) = E_{y|f} [ r rᵀ ] = ∇²_g D( p(. | f), p(. | g) )  at g = f

for any D that equals the Kullback-Leibler divergence up to terms without g.
"""

from __future__ import annotations

import math

from torch import Tensor, distributions
from torch.distributions import Distribution, ExponentialFamily, Independent
from torch.distributions.kl import kl_divergence
from torch.func import grad

_KULLBACK_LEIBLER = (
    distributions.Binomial,
    distributions.Cauchy,
    distributions.Geometric,
    distributions.Gumbel,
    distributions.HalfNormal,
    distributions.LogNormal,
    distributions.LowRankMultivariateNormal,
    distributions.MultivariateNormal,
)
"""Families whose divergence in torch.distributions is smooth and has no parameter in a transform,
which the generic rule for transformed distributions would miss."""

_MAX_SUPPORT = 1024


def divergence_rule(p: Distribution) -> str | None:
    """How `divergence` is computed for this family; None where there is no way."""
    base = base_of(p)
    if isinstance(base, distributions.Laplace):
        return "closed form"
    if base.has_enumerate_support and _support_size(base) <= _MAX_SUPPORT:
        return "enumeration"
    if isinstance(base, ExponentialFamily) and _has_log_normalizer(base):
        return "log-normalizer"
    return "Kullback-Leibler divergence" if isinstance(base, _KULLBACK_LEIBLER) else None


def divergence(p: Distribution, q: Distribution, rule: str) -> Tensor:
    """D(p, q) + terms that don't depend on q, summed over everything.

    log-normalizer   A(η_q) - ⟨∇A(η_p), η_q⟩, the Bregman divergence of A: F = (dη/df)ᵀ ∇²A (dη/df)
    enumeration      -Σ_y p(y) log q(y)
    closed form      ½ (Δ location / scale)² + ½ (Δ log scale)² for Laplace, whose own divergence
                     has |Δ location| in it, which autograd takes for constant at zero
    """
    p, q = base_of(p), base_of(q)
    if rule == "log-normalizer":
        assert isinstance(p, ExponentialFamily)
        assert isinstance(q, ExponentialFamily)
        natural = q._natural_params
        means = grad(lambda eta: p._log_normalizer(*eta).sum())(tuple(p._natural_params))
        inner = sum((m * eta).sum() for m, eta in zip(means, natural, strict=True))
        return q._log_normalizer(*natural).sum() - inner
    if rule == "enumeration":
        y = p.enumerate_support(expand=True)
        return -(p.log_prob(y).exp() * q.log_prob(y)).sum()
    if rule == "closed form":
        shift = (q.loc - p.loc) / p.scale  # type: ignore[attr-defined]
        stretch = q.scale.log() - p.scale.log()  # type: ignore[attr-defined]
        return 0.5 * (shift.square() + stretch.square()).sum()
    return kl_divergence(p, q).sum()


def base_of(p: Distribution) -> Distribution:
    """The family under `Independent`: sums over all dimensions don't need to know of it."""
    while isinstance(p, Independent):
        p = p.base_dist
    return p


def _has_log_normalizer(p: ExponentialFamily) -> bool:
    try:
        p._log_normalizer(*p._natural_params)
    except NotImplementedError:
        return False
    return True


def _support_size(p: Distribution) -> float:
    try:
        return len(p.enumerate_support(expand=False))
    except NotImplementedError:  # binomials with different numbers of trials
        return math.inf
