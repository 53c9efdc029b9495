"""Draws of latent outputs, random or quasi-random, and the mixture of p(y | f) over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor
from typing_extensions import Self

from lingp.likelihoods.conditional import Conditional
from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.predictives.quadrature import row_chunks
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


def normal_like(like: Tensor, generator: torch.Generator | None, *leading: int) -> Tensor:
    """Standard normal draws, (*leading x the shape of `like`)."""
    shape = (*leading, *like.shape)
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class LatentPredictive(Predictive):
    """p(y_n) = E p(y_n | f_n) under f_n ~ N(m_n, S_n).

    Attributes
    ----------
    likelihood
        Gives p(y | f) and its moments, at the known quantities of the targets if they have any.
    location
        m, (N x C).
    covariance
        S, (N x C x C), of any rank.
    """

    likelihood: Conditional
    location: Tensor
    covariance: Tensor

    def rows(self, index: slice | Tensor) -> Self:
        """The predictive of some rows."""
        return replace(
            self,
            likelihood=self.likelihood.rows(index),
            location=self.location[index],
            covariance=self.covariance[index],
        )

    def double(self) -> Self:
        """The same distribution in float64."""
        likelihood = self.likelihood
        if likelihood.known is not None:
            likelihood = likelihood.at(likelihood.known.double())
        location, covariance = self.location.double(), self.covariance.double()
        return replace(self, likelihood=likelihood, location=location, covariance=covariance)

    def beside(self, y: Tensor) -> tuple[Self, Tensor]:
        if not self.likelihood.has_known:
            return self, y
        values, known = y.unbind(-1)
        known = torch.where(known.isnan(), 1.0, known)  # missing with its target
        return replace(self, likelihood=self.likelihood.at(known)), values

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (N x K), or (N x L·K) for several softmaxes."""
        num_labels = self.likelihood.num_labels(tuple(self.location.shape[1:]))
        if num_labels is None:
            return super().probs
        mean = self.mean
        return mean if mean.shape[-1] == num_labels else torch.cat([1 - mean, mean], -1)

    def quantiles(self, *probabilities: float) -> tuple[Tensor, ...]:
        if not self.likelihood.has_order:
            raise TypeError("interval: class labels have no order, so no interval; use probs")
        return super().quantiles(*probabilities)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        normal = normal_like(self.location, generator, num_samples)
        f = self.location + torch.einsum("ncd,snd->snc", psd_root(self.covariance), normal)
        return self.likelihood.sample(f, generator=generator)


@dataclass(frozen=True)
class AffineMixture(LatentPredictive):
    """p(y_n) = 1/S Σ_s p(y_n | f_ns),   f_ns = m_n + A_n ε_s,   A_n A_nᵀ = S_n.

    All data share the draws ε: results don't depend on how data are batched, vary smoothly from
    input to input, and memory stays bounded, as nodes are made for a few rows at a time.

    Attributes
    ----------
    normal
        ε, (S x C).
    """

    normal: Tensor

    @cached_property
    def _root(self) -> Tensor:
        """A, (N x C x C)."""
        return psd_root(self.covariance)

    def _chunks(self) -> Iterator[tuple[slice, Tensor, Conditional]]:
        """Some rows, their nodes (S x n x C) and their likelihood."""
        for rows in row_chunks(len(self.location), self.normal.numel()):
            nodes = self.location[rows] + torch.einsum("ncd,sd->snc", self._root[rows], self.normal)
            yield rows, nodes, self.likelihood.rows(rows)

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        parts = []
        for _, nodes, likelihood in self._chunks():
            means = likelihood.conditional_mean(nodes)
            mean = means.mean(0)
            inner = likelihood.conditional_variance(nodes).mean(0)
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
