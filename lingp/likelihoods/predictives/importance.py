"""log ∫ p(y | f) N(f | m, S) df over several latent outputs, by quasi-Monte-Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lingp.likelihoods.predictives.draws import quasi_normal
from lingp.likelihoods.predictives.quadrature import row_chunks
from lingp.likelihoods.psd_root import psd_root

if TYPE_CHECKING:
    from lingp.likelihoods.base import Likelihood

NUM_NODES = 1024
_MAX_NEWTON = 30


def log_evidence(likelihood: Likelihood, y: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """log p(y_n) under f_n ~ N(m_n, S_n), (N,); deterministic and differentiable.

    With f = m + A z, A Aᵀ = S, nodes z come half from the prior N(0, I) and half from the Laplace
    approximation of p(z | y), and are weighted by the density of the mixture of both (the balance
    heuristic of Veach and Guibas, 1995): accurate where y is far from what f predicts, and with
    bounded weights where the posterior's tails are heavier than its Laplace approximation's.

    Parameters
    ----------
    likelihood
        Gives log p(y | f), its gradient and curvature.
    y
        Checked targets, first axis N.
    mean
        m, (N x C).
    covariance
        S, (N x C x C), of any rank.
    """
    normal = quasi_normal(NUM_NODES, mean)  # (S, C)
    root = psd_root(covariance)
    parts = [
        log_terms(likelihood, y[rows], mean[rows], root[rows], normal).logsumexp(0)
        for rows in row_chunks(len(mean), 2 * normal.numel())
    ]
    return torch.cat(parts) - math.log(2 * len(normal))


def product_or_joint(
    each: Tensor, observed: Tensor, coupling: Tensor, joint: Callable[[Tensor], Tensor]
) -> Tensor:
    """log p(y_n), (N,): the sum over a datum's targets, or their joint where f couples several.

    Parameters
    ----------
    each
        log p(y_nt) of each target on its own, (N x T).
    observed
        Where targets were observed, (N x T).
    coupling
        Covariances that couple targets of a datum, (N x ...): nonzero where they do.
    joint
        Row numbers (B,) -> log p(y_n) of those rows, (B,).
    """
    total = each.sum(-1)
    coupled = (coupling != 0).flatten(1).any(1) & (observed.sum(-1) > 1)
    rows = coupled.nonzero().squeeze(-1)
    return total.index_put((rows,), joint(rows)) if len(rows) else total


def log_terms(
    likelihood: Likelihood, y: Tensor, mean: Tensor, root: Tensor, normal: Tensor
) -> Tensor:
    """Logarithms of 2S numbers whose mean is p(y_n), (2S x N); from draws ε of N(0, I), (S x C)."""
    z, log_weight = weighted_nodes(*laplace(likelihood, y, mean, root), normal)
    f = mean + torch.einsum("ncd,snd->snc", root, z)
    return likelihood.log_prob(y, f) + log_weight


def weighted_nodes(mode: Tensor, factor: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes z (2S x N x C) and log w (2S x N) with E h(z) = mean of w h(z) for z ~ N(0, I).

    Parameters
    ----------
    mode, factor
        Half of the nodes are from N(mode, (L Lᵀ)⁻¹): (N x C), and L lower triangular (N x C x C).
    normal
        Draws or quasi-random nodes of N(0, I), (S x C).
    """
    offsets = torch.linalg.solve_triangular(factor.mT, normal.mT, upper=True)  # (N, C, S)
    near = mode + offsets.permute(2, 0, 1)
    far = normal.unsqueeze(1).expand(-1, len(mode), -1)
    z = torch.cat([far, near])
    log_prior = -0.5 * z.square().sum(-1)
    white = torch.einsum("ndc,snd->snc", factor, z - mode)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_laplace = log_det - 0.5 * white.square().sum(-1)
    return z, log_prior - torch.logaddexp(log_prior, log_laplace) + math.log(2)


@torch.no_grad()
def laplace(likelihood: Likelihood, y: Tensor, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Mode of p(z | y) (n x C) and the Cholesky factor of its precision I + AᵀΛA (n x C x C)."""
    eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)

    def latent(z: Tensor) -> Tensor:
        return mean + (root @ z.unsqueeze(-1)).squeeze(-1)

    def height(z: Tensor) -> Tensor:
        return likelihood.log_prob(y, latent(z)) - 0.5 * z.square().sum(-1)

    def precision_factor(z: Tensor) -> Tensor:
        half = likelihood.curvature_root(y, latent(z)).t_apply(root)  # RᵀA, (n, K, C)
        return torch.linalg.cholesky(eye + half.mT @ half)

    z = torch.zeros_like(mean)
    value, factor = height(z), precision_factor(z)
    for _ in range(_MAX_NEWTON):
        residual = likelihood.residual(y, latent(z)).unsqueeze(-1)
        slope = (root.mT @ residual).squeeze(-1) - z
        step = torch.cholesky_solve(slope.unsqueeze(-1), factor).squeeze(-1)
        moving = step.abs().amax(-1, keepdim=True) > 1e-3  # only where nodes go depends on it
        if not bool(moving.any()):
            break
        step = moving * step
        size = torch.ones_like(value)
        for _ in range(20):
            trial = z + size.unsqueeze(-1) * step
            worse = ~(height(trial) >= value)
            if not bool(worse.any()):
                break
            size = torch.where(worse, size / 2, size)
        z = torch.where(worse.unsqueeze(-1), z, trial)
        value, factor = height(z), precision_factor(z)
    return z, factor
