"""Nodes of p(z | y) one coordinate after another, where log p(y | f) is a sum over outputs.

With f = m + L z, L lower triangular, nodes are drawn from

    q(z) = Π_c N(z_c; a_c, s_c²) g_c(f_c) / G_c

N(z_c; a_c, s_c²) is what z_1 .. z_{c-1} say of z_c, and the targets to come, by normal
approximations that expectation propagation has found. log g_c is piecewise linear in f and close to
log p(y_c | f), so that the integrals G_c and the quantiles of each factor are known in closed form.
For labels and steep sigmoids, without the targets to come, this is the estimator of Genz (1992),
Geweke, Hajivassiliou and Keane: it finds the corner of latent space that the labels leave, however
small its share of the prior is, and however far it is from normal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.likelihoods.predictives.tilted import Terms, Tilted, knots

_SWEEPS = 30  # of expectation propagation
_STEP = 0.7
_QUANTILES = 64


@dataclass(frozen=True)
class SequentialNodes:
    """The density q of z, and nodes of it.

    Attributes
    ----------
    mean
        m, (N x C).
    triangle
        L, (N x C x C), with a diagonal that is not negative.
    turn
        Orthogonal, (N x C x C): A = L turnᵀ for the root A that z belongs to.
    edges, slopes, values
        log g_c is values + slopes f between two of the edges, (N x C x K - 1) and (N x C x K).
    offset, pull, spread
        a = offset + pull z, (N x C) and strictly lower triangular (N x C x C), and s, (N x C).
    dtype
        Of nodes; they are worked out in float64.
    """

    mean: Tensor
    triangle: Tensor
    turn: Tensor
    edges: Tensor
    slopes: Tensor
    values: Tensor
    offset: Tensor
    pull: Tensor
    spread: Tensor
    dtype: torch.dtype

    @staticmethod
    @torch.no_grad()
    def of(terms: Terms, mean: Tensor, root: Tensor, mode: Tensor) -> SequentialNodes:
        """For f = m + A z, with log p(y | f) as a sum of terms and the mode of p(z | y)."""
        dtype = mean.dtype
        mean, root, mode = mean.double(), root.double(), mode.double()
        turn, upper = torch.linalg.qr(root.mT)
        sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(root)
        peak = mean + (root @ mode.unsqueeze(-1)).squeeze(-1)
        deviation = root.square().sum(-1).sqrt()
        shape = knots(terms, mean, deviation, peak)
        triangle = (upper * sign.unsqueeze(-1)).mT
        ahead = _ahead(mean, triangle, *_sites(mean, triangle, *shape))
        return SequentialNodes(mean, triangle, turn * sign.unsqueeze(-2), *shape, *ahead, dtype)

    def nodes(self, uniform: Tensor) -> Tensor:
        """z of uniform numbers (S x C), (S x N x C)."""
        uniform = uniform.double()
        size, (num_data, num_outputs) = len(uniform), self.mean.shape
        w = self.mean.new_zeros(size, num_data, num_outputs)
        for c in range(num_outputs):
            centre, factor = self._factor(c, w)
            x = factor.quantile(uniform[:, c, None].expand(-1, num_data))
            w[..., c] = centre + self.spread[:, c] * x
        return torch.einsum("ncd,snd->snc", self.turn, w).to(self.dtype)

    def log_ratio(self, z: Tensor) -> Tensor:
        """log q(z) - log N(z; 0, I), (S x N)."""
        w = torch.einsum("ncd,snc->snd", self.turn, z.double())
        total = w.new_zeros(w.shape[:-1])
        for c in range(w.shape[-1]):
            centre, factor = self._factor(c, w)
            x = (w[..., c] - centre) / self.spread[:, c]
            total += factor.log_ratio(x) - self.spread[:, c].log()
            total += 0.5 * (w[..., c].square() - x.square())
        return total.to(self.dtype)

    def _factor(self, c: int, w: Tensor) -> tuple[Tensor, Tilted]:
        """a_c, and that of (z_c - a_c) / s_c given the coordinates before."""
        before, row = w[..., :c], self.triangle[:, c]
        ahead = self.offset[:, c] + torch.einsum("nd,snd->sn", self.pull[:, c, :c], before)
        centre = self.mean[:, c] + torch.einsum("nd,snd->sn", row[:, :c], before)
        shape = self.edges[:, c], self.slopes[:, c], self.values[:, c]
        return ahead, Tilted(centre + row[:, c] * ahead, row[:, c] * self.spread[:, c], *shape)


def _sites(
    mean: Tensor, root: Tensor, edges: Tensor, slopes: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """λ and τ >= 0 of exp(λ_c f_c - τ_c f_c² / 2) that stand for g_c, by expectation propagation.

    With steps that are cut, all at a time (Minka, 2001; Rasmussen and Williams, 2006, 3.6). What
    they are good for is where nodes go.
    """
    tau, lam = torch.zeros_like(mean), torch.zeros_like(mean)
    eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    count = torch.arange(_QUANTILES, dtype=mean.dtype, device=mean.device)
    middle = ((count + 0.5) / _QUANTILES)[:, None].expand(-1, mean.numel())
    flat = [t.flatten(0, 1) for t in (edges, slopes, values)]
    tiny = torch.finfo(mean.dtype).tiny ** 0.25
    for _ in range(_SWEEPS):
        precision = eye + root.mT @ (tau.unsqueeze(-1) * root)
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(precision), root.mT, upper=False)
        variance = half.square().sum(-2).clamp(min=tiny)
        push = (lam - tau * mean).unsqueeze(-1)
        centre = mean + (half.mT @ (half @ push)).squeeze(-1)
        # without the site itself
        left = 1 - tau * variance
        left = left.clamp(min=1e-6)
        cavity = variance / left
        around = (centre - variance * lam) / left
        x = Tilted(around.flatten()[None], cavity.flatten().sqrt(), *flat).quantile(middle)
        x = x.unflatten(1, mean.shape)
        shift, spread = x.mean(0), x.var(0, unbiased=False).clamp(1e-8, 1.0)
        new_tau = (1 / spread - 1) / cavity
        new_lam = shift / (spread * cavity.sqrt()) + new_tau * around
        tau, lam = tau + _STEP * (new_tau - tau), lam + _STEP * (new_lam - lam)
    return lam, tau


def _ahead(
    mean: Tensor, triangle: Tensor, lam: Tensor, tau: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What sites of later outputs say of z_c given those before it: `offset`, `pull`, `spread`."""
    offset, pull, spread = torch.zeros_like(mean), torch.zeros_like(triangle), torch.ones_like(mean)
    size = mean.shape[-1]
    for c in range(size - 1):
        later = triangle[:, c + 1 :, c:]  # (N, C - c - 1, C - c)
        t, later_lam = tau[:, c + 1 :], lam[:, c + 1 :]
        eye = torch.eye(size - c, dtype=mean.dtype, device=mean.device)
        precision = eye + later.mT @ (t.unsqueeze(-1) * later)
        first = torch.linalg.solve(precision, eye[:, :1].expand(len(mean), -1, -1)).squeeze(-1)
        reach = (later @ first.unsqueeze(-1)).squeeze(-1)
        spread[:, c] = first[:, 0].clamp(min=torch.finfo(mean.dtype).eps).sqrt()
        offset[:, c] = (reach * (later_lam - t * mean[:, c + 1 :])).sum(-1)
        pull[:, c, :c] = -torch.einsum("nj,njd->nd", t * reach, triangle[:, c + 1 :, :c])
    return offset, pull, spread
