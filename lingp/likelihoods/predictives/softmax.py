"""Moments of softmax(f) for normal f: probabilities and their variances.

Every function takes means (B x K) and covariances (B x K x K) and sees differences of the f_k
alone: a shift common to all of them, certain or not, changes nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lingp.likelihoods.predictives.draws import quasi_normal
from lingp.likelihoods.predictives.quadrature import row_chunks
from lingp.linalg.psd import psd_root

NUM_QUASI = 4096


class LabelMoments(Protocol):
    """Of p = softmax(f): log E p and Var p, (B x K) each."""

    @property
    def log_probs(self) -> Tensor:
        """Log E p."""

    @property
    def epistemic(self) -> Tensor:
        """Var p."""


class SoftmaxMoments(NamedTuple):
    """`LabelMoments` that are computed together."""

    log_probs: Tensor
    epistemic: Tensor


def integrate(mean: Tensor, covariance: Tensor) -> SoftmaxMoments:
    """4096 quasi-random nodes over the differences of the f_k."""
    contrasts = _contrasts(mean)  # (K, K-1)
    nodes = quasi_normal(NUM_QUASI, mean[:1, 1:]).mT  # (K-1, S)
    parts = []
    for rows in row_chunks(len(mean), mean.shape[-1] * NUM_QUASI):
        root = contrasts @ psd_root(contrasts.mT @ covariance[rows] @ contrasts)
        log_p = (mean[rows].unsqueeze(-1) + root @ nodes).log_softmax(1)  # (n, K, S)
        parts.append(
            (log_p.logsumexp(-1) - math.log(NUM_QUASI), log_p.exp().var(-1, unbiased=False))
        )
    log_probs, epistemic = (torch.cat(part) for part in zip(*parts, strict=True))
    return SoftmaxMoments(log_probs, epistemic)


def _contrasts(mean: Tensor) -> Tensor:
    """An orthonormal basis of what is orthogonal to (1, .., 1): Helmert's, (K x K-1)."""
    size = mean.shape[-1]
    index = torch.arange(1, size, dtype=mean.dtype, device=mean.device)
    matrix = torch.ones(size, size - 1, dtype=mean.dtype, device=mean.device).triu()
    matrix[1:].diagonal().copy_(-index)
    return matrix / (index * (index + 1)).sqrt()


def probit(mean: Tensor, covariance: Tensor) -> SoftmaxMoments:
    """p_k ∝ 1 / Σ_j exp(-(m_k - m_j) / s_kj),   s_kj = √(1 + π/8 Var(f_k - f_j)).

    For two classes it is the logistic-probit approximation of MacKay (1992), for more the mean
    field of Lu, Ie and Sha (2020, "Mean-field approximation to Gaussian-softmax integral",
    equation 11) with the variance of differences, normalised. Variances follow from
    E p_k (1 - p_k) = ∂E p_k / ∂m_k, exact for a softmax, taken of the approximation: for two
    classes, Var p = p (1 - p) (1 - 1/s), the form of Daunizeau (2017, equation 9).
    """
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    spread = diagonal.unsqueeze(-1) + diagonal.unsqueeze(-2) - 2 * covariance
    s = (1 + math.pi / 8 * spread.clamp(min=0)).sqrt()
    scaled = (mean.unsqueeze(-2) - mean.unsqueeze(-1)) / s  # -(m_k - m_j) / s_kj
    log_probs = (-scaled.logsumexp(-1)).log_softmax(-1)
    p = log_probs.exp()
    # ∂ log p̃_k / ∂m_k and -∂ log p̃_i / ∂m_k before normalisation
    slope = scaled.softmax(-1) / s
    slope = slope - torch.diag_embed(slope.diagonal(dim1=-2, dim2=-1))
    aleatoric = p * ((1 - p) * slope.sum(-1) + (p.unsqueeze(-1) * slope).sum(-2))
    return SoftmaxMoments(log_probs, (p * (1 - p) - aleatoric).clamp(min=0))


def laplace_bridge(mean: Tensor, covariance: Tensor) -> SoftmaxMoments:
    """Moments of the Dirichlet whose Laplace approximation in logits is the given normal.

        α_k = ( 1 - 2/K + e^{m_k} / K² Σ_l e^{-m_l} ) / S_kk

    after f is replaced by f - mean(f), which has the same softmax (Hobbhahn, Kristiadi and Hennig,
    "Fast predictive uncertainty for classification with Bayesian deep networks", UAI 2022,
    equation 5). Accurate where variances are small; it ignores correlations between classes.
    """
    size = mean.shape[-1]
    centred = mean - mean.mean(-1, keepdim=True)
    covariance = covariance - covariance.mean(-1, keepdim=True)
    variance = (covariance - covariance.mean(-2, keepdim=True)).diagonal(dim1=-2, dim2=-1)
    variance = variance.clamp(min=torch.finfo(mean.dtype).eps)
    total = (-centred).logsumexp(-1, keepdim=True) - 2 * math.log(size)
    # log α: e^{m} may overflow
    log_alpha = torch.logaddexp(
        centred + total, torch.full_like(mean, -math.inf if size == 2 else math.log(1 - 2 / size))
    )
    log_alpha = log_alpha - variance.log()
    log_sum = log_alpha.logsumexp(-1, keepdim=True)
    log_probs = log_alpha - log_sum
    p, concentration = log_probs.exp(), log_sum.exp()
    return SoftmaxMoments(log_probs, p * (1 - p) / (concentration + 1))
