"""Draws of latent outputs, random or quasi-random, and the mixture of p(y | f) over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from lingp.likelihoods.predictives.base import PredictiveOfMoments
from lingp.likelihoods.predictives.conditional import Conditional
from lingp.likelihoods.predictives.quadrature import row_chunks
from lingp.likelihoods.predictives.quantiles import interval_from_draws
from lingp.linalg.psd import psd_root

DEFAULT_NUM_SAMPLES = 1000


def random_normal(
    num_samples: int | None, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Standard normal draws for the C latent outputs of one datum, (S x C)."""
    if num_samples is None:
        num_samples = DEFAULT_NUM_SAMPLES
    if num_samples < 1:
        raise ValueError(f"num_samples: expected at least 1, got {num_samples}")
    shape = (num_samples, like.shape[-1])
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def quasi_normal(num_nodes: int, like: Tensor) -> Tensor:
    """Scrambled Sobol nodes carried to a standard normal, always the same, (S x C)."""
    return _sobol_normal(num_nodes, like.shape[-1]).to(like)


@lru_cache(maxsize=16)
def _sobol_normal(num_nodes: int, dimension: int) -> Tensor:
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=0)
    uniform = engine.draw(num_nodes, dtype=torch.float64)
    # the engine has 30 bits: the middle of each cell keeps zero and one out
    return torch.special.ndtri(uniform * (1 - 2.0**-30) + 2.0**-31)


def draw_latents(
    location: Tensor, covariance: Tensor, num_samples: int, generator: torch.Generator | None
) -> Tensor:
    """Draws of f_n ~ N(location_n, covariance_n), independent over data, (num_samples x N x C)."""
    normal = torch.randn(
        (num_samples, *location.shape),
        generator=generator,
        dtype=location.dtype,
        device=location.device,
    )
    return location + torch.einsum("ncd,snd->snc", psd_root(covariance), normal)


@dataclass(frozen=True)
class AffineMixture(PredictiveOfMoments):
    """p(y_n) = 1/S Σ_s p(y_n | f_ns),   f_ns = m_n + A_n ε_s,   A_n A_nᵀ = S_n.

    All data share the draws ε: results don't depend on how data are batched, vary smoothly from
    input to input, and memory stays bounded, as nodes are made for a few rows at a time.

    Attributes
    ----------
    likelihood
        Gives p(y | f) and its moments.
    location
        m, (N x C).
    covariance
        S, (N x C x C), of any rank.
    normal
        ε, (S x C).
    known
        The known quantity of each target, (N x T), where the likelihood has one.
    """

    likelihood: Conditional
    location: Tensor
    covariance: Tensor
    normal: Tensor
    known: Tensor | None = None

    @cached_property
    def _root(self) -> Tensor:
        """A, (N x C x C)."""
        return psd_root(self.covariance)

    def _chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Some rows, their nodes (S x n x C) and their known quantities."""
        for rows in row_chunks(len(self.location), self.normal.numel()):
            nodes = self.location[rows] + torch.einsum("ncd,sd->snc", self._root[rows], self.normal)
            yield rows, nodes, None if self.known is None else self.known[rows]

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """E y, Var E[y | f] and E Var[y | f], (N x M)."""
        parts = []
        for _, nodes, known in self._chunks():
            means = self.likelihood.conditional_mean(nodes, known)
            mean = means.mean(0)
            inner = self.likelihood.conditional_variance(nodes, known).mean(0)
            parts.append((mean, (means - mean).square().mean(0), inner))
        mean, epistemic, aleatoric = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, epistemic, aleatoric

    def log_prob(self, y: Tensor) -> Tensor:
        parts = [
            self.likelihood.log_prob(y[rows], nodes).logsumexp(0)
            for rows, nodes, _ in self._chunks()
        ]
        return torch.cat(parts) - math.log(len(self.normal))

    @torch.no_grad()
    def average(self, function: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """1/S Σ_s of a function (nodes (S x n x C), rows) -> (S x n x M) for all data, (N x M)."""
        return torch.cat([function(nodes, rows).mean(0) for rows, nodes, _ in self._chunks()])

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        return interval_from_draws(self, level)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        f = draw_latents(self.location, self.covariance, num_samples, generator)
        return self.likelihood.sample(f, self.known, generator=generator)
