"""A likelihood from a function f -> torch.distributions.Distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from lingp.likelihoods.autodiff import call, name_of, unchecked_distributions
from lingp.likelihoods.base import Likelihood
from lingp.likelihoods.divergence import base_of, divergence, divergence_rule
from lingp.likelihoods.roots import CurvatureRoot, DenseRoot
from lingp.likelihoods.targets import check_values, flatten_targets
from lingp.linalg.psd import psd_root

_CURVATURES = ("fisher", "hessian")


class FromDistribution(Likelihood):
    """p(y | f) of any torch.distributions family whose parameters are functions of f.

        r = ∇_f log p(y | f),     Λ = E_{y|f} [ r rᵀ ]

    Λ is the Fisher information, exactly, where the family is exponential with a log-normalizer A,
    (dη/df)ᵀ ∇²A(η) (dη/df), has a support that can be enumerated, or has a Kullback-Leibler
    divergence; else the PSD part of -∇²_f log p. The repr says which. Sampling and moments are the
    distribution's; for Categorical, moments are those of the one-hot indicators.

    Parameters
    ----------
    distribution
        f (... x C) -> Distribution of batch shape (...) or (... x T), one for each datum and
        draw; batch dimensions beyond those of f count as independent targets. A
        `torch.nn.Module`'s parameters are hyperparameters, and may stay on the CPU whatever the
        device of f.
    curvature
        "fisher", with the Hessian where the family has no Fisher rule; or "hessian", its PSD part.

    Examples
    --------
    >>> likelihood = FromDistribution(lambda f: torch.distributions.Gamma(2.0, (-f).exp()))
    """

    methods = ("quasi_monte_carlo", "monte_carlo")
    found_later = ("family", "rule")

    def __init__(
        self,
        distribution: Callable[[Tensor], Distribution],
        *,
        curvature: Literal["fisher", "hessian"] = "fisher",
    ) -> None:
        super().__init__()
        if not callable(distribution):
            raise TypeError(
                "distribution: expected a function f -> torch.distributions.Distribution, got "
                f"{type(distribution).__name__}"
            )
        if curvature not in _CURVATURES:
            raise ValueError(f'curvature: expected "fisher" or "hessian", got {curvature!r}')
        self.function, self.curvature = distribution, curvature
        self.family: str | None = None
        self.rule: str | None = None
        self.device: torch.device | None = None

    def distribution(self, f: Tensor) -> Distribution:
        """p(y | f), batch shape (... x N) or (... x N x T)."""
        with unchecked_distributions():
            p = call(self.function, f)
        if not isinstance(p, Distribution):
            raise TypeError(
                f"distribution: expected a torch.distributions.Distribution, got {type(p).__name__}"
            )
        leading = f.shape[:-1]
        if p.batch_shape[: len(leading)] != leading:
            raise ValueError(
                f"distribution: for f of shape {tuple(f.shape)} expected a batch shape that starts "
                f"with {tuple(leading)}, got {tuple(p.batch_shape)}; index outputs by f[..., c]"
            )
        return p

    def _probe(
        self, output_shape: tuple[int, ...], dtype: torch.dtype, *, requires_grad: bool = False
    ) -> Distribution:
        """p(y | f) at f = 0, for shapes, on the device of the last targets that were checked."""
        f = torch.zeros(1, math.prod(output_shape), dtype=dtype, device=self.device)
        with torch.set_grad_enabled(requires_grad):
            return self.distribution(f.requires_grad_(requires_grad))

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        p = self._probe(output_shape, torch.float64)
        return (*p.batch_shape[1:], *p.event_shape)

    def moment_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(moments_of(self._probe(output_shape, torch.float64))[0].shape[1:])

    def num_labels(self, output_shape: tuple[int, ...]) -> int | None:
        p = base_of(self._probe(output_shape, torch.float64))
        if isinstance(p, Categorical) and p.batch_shape == (1,):
            return int(p.probs.shape[-1])
        return None

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.device = y.device
        shape = self.target_shape(output_shape)
        flat = flatten_targets(y, shape, dtype)
        p = self._probe(output_shape, dtype, requires_grad=True)
        self.family, self.rule = type(base_of(p)).__name__, self._rule_for(p)
        support = p.support
        if support is None:
            return flat
        if moves(support):
            raise ValueError(
                f"distribution: the support of {self.family} moves with f, where log p has no "
                "gradient; make it a family with a fixed support"
            )
        valid = support.check(flat.reshape(-1, *shape)).reshape(len(flat), -1)
        expected = f"targets in the support of {self.family}, {support}"
        check_values(flat, valid.expand_as(flat), expected)
        return flat

    def _rule_for(self, p: Distribution) -> str | None:
        return divergence_rule(p) if self.curvature == "fisher" else None

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        p = self.distribution(f)
        num_leading = f.dim() - 1
        y = y.reshape(len(y), *p.batch_shape[num_leading:], *p.event_shape)
        return _flat(p.log_prob(y), f).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.func.grad(lambda g: self.log_prob(y, g).sum())(f)

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        p = self.distribution(f)
        rule = self._rule_for(p)
        if rule is None:
            curvature = batched_hessian(lambda g: -self.log_prob(y, g).sum(), f)
        else:
            curvature = batched_hessian(lambda g: divergence(p, self.distribution(g), rule), f)
        return DenseRoot(psd_root(curvature))

    def conditional_mean(self, f: Tensor) -> Tensor:
        return _flat(moments_of(self.distribution(f))[0], f)

    def conditional_variance(self, f: Tensor) -> Tensor:
        return _flat(moments_of(self.distribution(f))[1], f)

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        # torch.distributions draw from the global generator alone: lend it, and put it back
        devices = [f.device] if f.device.type == "cuda" else []
        with torch.random.fork_rng(devices, enabled=generator is not None):
            if generator is not None:
                seed = torch.randint(2**62, (), generator=generator, device=generator.device)
                torch.manual_seed(int(seed))
            return _flat(self.distribution(f).sample(), f)

    def extra_repr(self) -> str:
        if self.family is None:
            return f"{name_of(self.function)}, curvature={self.curvature}"
        how = "PSD part of the Hessian" if self.rule is None else f"Fisher by {self.rule}"
        return f"{self.family}, curvature: {how}"


def _flat(values: Tensor, f: Tensor) -> Tensor:
    """Values of each datum and draw as (... x N x M), like f."""
    return values.reshape(*f.shape[:-1], -1).to(f.dtype)


def batched_hessian(function: Callable[[Tensor], Tensor], f: Tensor) -> Tensor:
    """∇² of Σ_n h(f_n) for each row of f (N x C), (N x C x C): C backward passes."""
    pull = torch.func.vjp(torch.func.grad(function), f)[1]
    basis = torch.eye(f.shape[-1], dtype=f.dtype, device=f.device)
    return torch.stack([pull(row.expand_as(f))[0] for row in basis], -2)


def moments_of(p: Distribution) -> tuple[Tensor, Tensor]:
    """E y and Var y; of the one-hot indicators for Categorical."""
    base = base_of(p)
    if isinstance(base, Categorical):
        return base.probs, base.probs * (1 - base.probs)
    return p.mean, p.variance


def moves(constraint: Any) -> bool:
    """Whether a support depends on f, which is then part of a graph."""
    values = list(vars(constraint).values())
    values += [item for value in values if isinstance(value, list | tuple) for item in value]
    return any(
        value.requires_grad
        if isinstance(value, Tensor)
        else isinstance(value, torch.distributions.constraints.Constraint) and moves(value)
        for value in values
    )
