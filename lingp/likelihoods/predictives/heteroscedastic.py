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

from lingp.likelihoods.predictives.draws import LatentPredictive, quasi_normal
from lingp.likelihoods.predictives.importance import (
    NUM_NODES,
    laplace,
    product_or_joint,
    weighted_nodes,
)
from lingp.likelihoods.predictives.mass import scanned_panels
from lingp.likelihoods.predictives.quadrature import (
    LOG_NORMAL,
    log_integral,
    normal_mean,
    normal_panels,
    row_chunks,
)
from lingp.likelihoods.targets import split_missing

_SCALARS = 15 * 24  # nodes of the panels a row ends up with, about
_LOWEST, _HIGHEST = -41.0, 41.0  # f₂ outside is constant, or g = f₂ to rounding


Precision = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Rows:
    """Each target of some rows given z: f₂ = m₂ + s z, f₁ | z ~ N(m₁ + c z, v), (n x T) each."""

    precision: Precision
    m1: Tensor
    m2: Tensor
    c: Tensor
    s: Tensor
    v: Tensor

    def rows(self, index: slice | Tensor) -> _Rows:
        """Some of them."""
        return _Rows(
            self.precision, *(x[index] for x in (self.m1, self.m2, self.c, self.s, self.v))
        )

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """η₁'s mean, its variance and g given z, (... x n x T)."""
        return self.m1 + self.c * z, self.v, self.precision(self.m2 + self.s * z)

    def log_density(self, y: Tensor, z: Tensor) -> Tensor:
        """log N(y; σ² m₁', σ² + σ⁴ v) - z²/2 with σ² = 1/g."""
        m1, v, g = self.moments(z)
        root, total = g.sqrt(), 1 + v / g
        white = (root * y - m1 / root).square() / total
        return 0.5 * (g.log() - total.log() - white) - LOG_NORMAL - 0.5 * z.square()


@dataclass(frozen=True)
class HeteroscedasticPredictive(LatentPredictive):
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
    def _each(self) -> _Rows:
        """Each target of all rows."""
        m1, m2 = self.location.chunk(2, -1)
        size = self._num_targets
        tiny = torch.finfo(m1.dtype).tiny
        diagonal = self.covariance.diagonal(dim1=-2, dim2=-1)
        cross = self.covariance.diagonal(offset=size, dim1=-2, dim2=-1)
        s = diagonal[:, size:].clamp(min=tiny).sqrt()
        c = cross / s
        v = (diagonal[:, :size] - c.square()).clamp(min=0)
        return _Rows(self.precision, m1, m2, c, s, v)

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        parts = [
            _moments_of(self._each.rows(rows))
            for rows in row_chunks(len(self.location), _SCALARS * self._num_targets)
        ]
        mean, epistemic, aleatoric = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, epistemic, aleatoric

    def log_prob_each(self, y: Tensor) -> Tensor:
        """log p(y_nt) of each target on its own, (N x T); zero where it is missing."""
        values, observed = split_missing(y)
        parts = [
            _log_prob_of(self._each.rows(rows), values[rows])
            for rows in row_chunks(len(y), _SCALARS * self._num_targets)
        ]
        return torch.where(observed, torch.cat(parts), 0.0)

    def log_prob(self, y: Tensor) -> Tensor:
        size = self._num_targets
        same = torch.eye(size, dtype=torch.bool, device=self.location.device).repeat(2, 2)
        coupling = self.covariance.masked_fill(same, 0.0)

        def joint(chosen: Tensor) -> Tensor:
            normal = quasi_normal(NUM_NODES, self.location[:1, size:])
            chunks = row_chunks(len(chosen), 2 * NUM_NODES * size * size)
            return torch.cat([self._joint_log_prob(chosen[c], y, normal) for c in chunks])

        return product_or_joint(self.log_prob_each(y), ~y.isnan(), coupling, joint)

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

    def given(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y_nt given f₂ = m₂ + s z, which leaves it normal, (... x N x T)."""
        m1, v, g = self._each.moments(z)
        return m1 / g, 1 / g + v / g.square()

    @property
    def cdf_support(self) -> Literal["reals"]:
        return "reals"

    @torch.no_grad()
    def cdf(self, y: Tensor) -> Tensor:
        chunks = row_chunks(len(y), _SCALARS * self._num_targets)
        return torch.cat([_cdf_of(self._each.rows(rows), y[rows]) for rows in chunks])

    def _around(self) -> tuple[Tensor, Tensor]:
        m1, v, g = self._each.moments(torch.zeros_like(self._each.m1))
        return m1 / g, (1 / g + (v + self._each.c.square()) / g.square()).sqrt()


def _log_prob_of(rows: _Rows, y: Tensor) -> Tensor:
    def crossing(z: Tensor) -> Tensor:
        """Zero where y is the conditional mean: a narrow peak where v is small."""
        m1, _, g = rows.moments(z)
        return m1 - g * y

    breakpoints, peak = scanned_panels(lambda z: rows.log_density(y, z), _grid(rows, y), crossing)

    def log_integrand(z: Tensor, index: Tensor) -> Tensor:
        return rows.rows(index).log_density(y[index], z)

    return log_integral(log_integrand, breakpoints, peak) - LOG_NORMAL


@torch.no_grad()
def _grid(rows: _Rows, y: Tensor) -> Tensor:
    """Ascending points (M x n x T) that no peak of h = log p(y, z) falls between.

    log p(y | f₂) varies on the scale of f₂ while -40 < f₂ < 40; beyond, and where s is small, h is
    concave, but for the peak where y is the conditional mean.
    """
    like = rows.m2
    zero = torch.zeros_like(like)
    # h(z) <= max ½ log g - z²/2, so the peak is no farther than this from 0
    reach = (2 * (_HIGHEST - rows.log_density(y, zero)).clamp(min=0.0)).sqrt() + 10

    def points(start: float, end: float, number: int) -> Tensor:
        share = torch.linspace(start, end, number, dtype=like.dtype, device=like.device)
        return share[:, None, None]

    far = (points(-1, 1, 65) * reach.asinh()).sinh()
    near = points(-10, 10, 81).expand(-1, *like.shape)
    lively = (points(_LOWEST, _HIGHEST, 165) - rows.m2) / rows.s
    grid = torch.cat([far, near, lively])
    return torch.minimum(torch.maximum(grid, -reach), reach).sort(0).values


def _moments_of(rows: _Rows) -> tuple[Tensor, Tensor, Tensor]:
    centre = (rows.m1 / rows.precision(rows.m2)).detach()

    def terms(z: Tensor, index: Tensor) -> Tensor:
        m1, v, g = rows.rows(index).moments(z)
        off = m1 / g - centre[index]
        return torch.stack([off, off.square() + v / g.square(), 1 / g])

    # σ⁴ grows by e^{-2 f₂} towards small f₂, down to where f₂ stops mattering
    share = torch.linspace(0, 1, 9, dtype=centre.dtype, device=centre.device)[:, None, None]
    lower = -10 - 2 * rows.s.detach()
    off, squared, inner = normal_mean(terms, lower + share * (10 - lower))
    return centre + off, (squared - off.square()).clamp(min=0), inner


def _cdf_of(rows: _Rows, y: Tensor) -> Tensor:
    def below(z: Tensor, index: Tensor) -> Tensor:
        m1, v, g = rows.rows(index).moments(z)
        root = g.sqrt()
        return torch.special.ndtr((root * y[index] - m1 / root) / (1 + v / g).sqrt())

    return normal_mean(below, normal_panels(y), 1e-8)


def _cholesky(matrix: Tensor) -> Tensor:
    """Lower triangular L with L Lᵀ = matrix, (N x n x n), for PSD matrices up to rounding."""
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1).clamp(min=torch.finfo(matrix.dtype).tiny)
    largest = largest[:, None, None]
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    slack = matrix.shape[-1] * torch.finfo(matrix.dtype).eps
    factor = psd_safe_cholesky(matrix / largest + slack * eye, jitter=10 * slack, max_tries=6)
    return largest.sqrt() * factor
