"""The predictive of a Gaussian whose mean and variance are both uncertain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from lingp.likelihoods.predictives.draws import quasi_normal
from lingp.likelihoods.predictives.importance import NUM_NODES, laplace, weighted_nodes
from lingp.likelihoods.predictives.mass import scanned_panels
from lingp.likelihoods.predictives.one_variable import GivenVariable, OneVariablePredictive
from lingp.likelihoods.predictives.quadrature import LOG_NORMAL, row_chunks
from lingp.likelihoods.targets import split_missing

_LOWEST, _HIGHEST = -41.0, 41.0  # f₂ outside is constant, or g = f₂ to rounding


Precision = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _GivenNoise(GivenVariable):
    """y given z, with f₂ = m₂ + s z and f₁ | z ~ N(m₁ + c z, v), (n x T) each."""

    precision: Precision
    m1: Tensor
    m2: Tensor
    c: Tensor
    s: Tensor
    v: Tensor

    def rows(self, index: slice | Tensor) -> _GivenNoise:
        each = (self.m1, self.m2, self.c, self.s, self.v)
        return _GivenNoise(self.precision, *(x[index] for x in each))

    def _natural(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of η₁, and g."""
        return self.m1 + self.c * z, self.precision(self.m2 + self.s * z)

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m1, g = self._natural(z)
        return m1 / g, self.v / g.square(), 1 / g

    def _standardised(self, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(y - E y) / √Var y, g, and Var y in units of 1/g."""
        m1, g = self._natural(z)
        root, total = g.sqrt(), 1 + self.v / g
        return (root * y - m1 / root) / total.sqrt(), g, total

    def log_joint(self, y: Tensor, z: Tensor) -> Tensor:
        white, g, total = self._standardised(y, z)
        return 0.5 * (g.log() - total.log() - white.square() - z.square()) - LOG_NORMAL

    def cdf(self, y: Tensor, z: Tensor) -> Tensor:
        return torch.special.ndtr(self._standardised(y, z)[0])

    def moment_panels(self) -> Tensor:
        # σ⁴ grows by e^{-2 f₂} towards small f₂, down to where f₂ stops mattering
        share = torch.linspace(0, 1, 9, dtype=self.s.dtype, device=self.s.device)[:, None, None]
        lower = -10 - 2 * self.s.detach()
        return lower + share * (10 - lower)

    def panels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        def crossing(z: Tensor) -> Tensor:
            """Zero where y is the conditional mean: a narrow peak where v is small."""
            m1, g = self._natural(z)
            return m1 - g * y

        return scanned_panels(lambda z: self.log_joint(y, z), self._grid(y), crossing)

    @torch.no_grad()
    def _grid(self, y: Tensor) -> Tensor:
        """Ascending points (M x n x T) that no peak of h = `log_joint` falls between.

        log p(y | f₂) varies on the scale of f₂ while -40 < f₂ < 40; beyond, and where s is small, h
        is concave, but for the peak where y is the conditional mean.
        """
        like = self.m2
        # h(z) <= max ½ log g - z²/2, so the peak is no farther than this from 0
        height = _HIGHEST - self.log_joint(y, torch.zeros_like(like))
        reach = (2 * height.clamp(min=0.0)).sqrt() + 10

        def points(start: float, end: float, number: int) -> Tensor:
            share = torch.linspace(start, end, number, dtype=like.dtype, device=like.device)
            return share[:, None, None]

        far = (points(-1, 1, 65) * reach.asinh()).sinh()
        near = points(-10, 10, 81).expand(-1, *like.shape)
        lively = (points(_LOWEST, _HIGHEST, 165) - self.m2) / self.s
        grid = torch.cat([far, near, lively])
        return torch.minimum(torch.maximum(grid, -reach), reach).sort(0).values


@dataclass(frozen=True)
class HeteroscedasticPredictive(OneVariablePredictive):
    """p(y) = ∫ N(y; μ, σ²) N(f | m, S) df,   μ = f₁ / g(f₂),   σ² = 1 / g(f₂).

    Given f₂, f₁ is normal and integrates in closed form,

        y | f₂ ~ N(σ² m', σ² + σ⁴ v'),     f₁ | f₂ ~ N(m', v'),

    which leaves one variable: adaptive quadrature over f₂. The joint log density of several
    targets that S couples is quasi-Monte-Carlo over their f₂, with f₁ integrated in closed form.

    Attributes
    ----------
    location
        m, (N x 2T): f₁, then f₂.
    covariance
        S, (N x 2T x 2T), of any rank.
    precision
        g, elementwise.
    """

    precision: Precision

    @cached_property
    def _num_targets(self) -> int:
        """T."""
        return self.location.shape[-1] // 2

    @cached_property
    def given(self) -> _GivenNoise:
        m1, m2 = self.location.chunk(2, -1)
        size = self._num_targets
        tiny = torch.finfo(m1.dtype).tiny
        diagonal = self.covariance.diagonal(dim1=-2, dim2=-1)
        cross = self.covariance.diagonal(offset=size, dim1=-2, dim2=-1)
        s = diagonal[:, size:].clamp(min=tiny).sqrt()
        c = cross / s
        v = (diagonal[:, :size] - c.square()).clamp(min=0)
        return _GivenNoise(self.precision, m1, m2, c, s, v)

    @property
    def coupling(self) -> Tensor:
        size = self._num_targets
        same = torch.eye(size, dtype=torch.bool, device=self.location.device).repeat(2, 2)
        return self.covariance.masked_fill(same, 0.0)

    def joint_log_prob(self, rows: Tensor, y: Tensor) -> Tensor:
        size = self._num_targets
        normal = quasi_normal(NUM_NODES, self.location[:1, size:])
        chunks = row_chunks(len(rows), 2 * NUM_NODES * size * size)
        return torch.cat([self._joint_log_prob(rows[c], y, normal) for c in chunks])

    def _joint_log_prob(self, rows: Tensor, y: Tensor, normal: Tensor) -> Tensor:
        """Of some rows, by number."""
        y, mean, covariance = y[rows], self.location[rows], self.covariance[rows]
        size = self._num_targets
        # f₂ = m₂ + A z₂,  f₁ = m₁ + B z₂ + D z₁: the Cholesky factor in the order f₂, f₁
        swapped = covariance.roll((size, size), (-2, -1))
        factor = _cholesky(swapped)
        a, b, d = factor[:, :size, :size], factor[:, size:, :size], factor[:, size:, size:]
        root = torch.cat(
            [torch.cat([d, b], -1), torch.cat([torch.zeros_like(a), a], -1)], -2
        )  # columns z₁, z₂
        mode, precision = laplace(self.likelihood, y, mean.detach(), root.detach())
        # the last block of the factor is that of z₂'s marginal precision
        z, log_weight = weighted_nodes(mode[:, size:], precision[:, size:, size:], normal)
        m1, m2 = mean.chunk(2, -1)
        g = self.precision(m2 + torch.einsum("ncd,snd->snc", a, z))
        values, observed = split_missing(y)
        sigma = torch.where(observed, g.rsqrt(), 0.0)  # (2S, n, T)
        centre = m1 + torch.einsum("ncd,snd->snc", b, z)
        off = torch.where(observed, values * g.sqrt() - centre * sigma, 0.0)
        spread = sigma.unsqueeze(-1) * (d @ d.mT) * sigma.unsqueeze(-2)
        eye = torch.eye(size, dtype=mean.dtype, device=mean.device)
        scale = torch.linalg.cholesky(eye + spread)
        white = torch.linalg.solve_triangular(scale, off.unsqueeze(-1), upper=False).squeeze(-1)
        terms = 0.5 * g.log() - LOG_NORMAL
        log_density = (observed * terms).sum(-1) - 0.5 * white.square().sum(-1)
        log_density = log_density - scale.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return (log_density + log_weight).logsumexp(0) - math.log(len(z))

    @property
    def cdf_support(self) -> Literal["reals"]:
        return "reals"

    def _around(self) -> tuple[Tensor, Tensor]:
        mean, between, within = self.given.moments(torch.zeros_like(self.given.m1))
        between = between + (self.given.c * within).square()
        return mean, (between + within).sqrt()


def _cholesky(matrix: Tensor) -> Tensor:
    """Lower triangular L with L Lᵀ = matrix, (N x n x n), for PSD matrices up to rounding."""
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1).clamp(min=torch.finfo(matrix.dtype).tiny)
    largest = largest[:, None, None]
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    slack = matrix.shape[-1] * torch.finfo(matrix.dtype).eps
    factor = psd_safe_cholesky(matrix / largest + slack * eye, jitter=10 * slack, max_tries=6)
    return largest.sqrt() * factor
