"""E log p(y | f) under a normal distribution of f, as variational inference needs it."""

from __future__ import annotations

import torch
from torch import Tensor

from lingp.likelihoods.base import Likelihood
from lingp.likelihoods.elementwise import ElementwiseLikelihood
from lingp.likelihoods.predictives.draws import quasi_normal
from lingp.likelihoods.predictives.quadrature import NUM_NODES, normal_mean, row_chunks
from lingp.linalg.psd import psd_root

_NUM_PANELS = 12


def expected_log_prob(
    likelihood: Likelihood, y: Tensor, mean: Tensor, covariance: Tensor, *, num_nodes: int = 256
) -> Tensor:
    """E log p(y_n | f_n) under f_n ~ N(m_n, S_n), (N,); deterministic and differentiable.

    In closed form where log p is quadratic in f; by adaptive quadrature where each target depends
    on one output; otherwise by quasi-Monte-Carlo with the joint covariance.

    Parameters
    ----------
    likelihood
        Gives log p(y | f).
    y
        Checked targets, first axis N.
    mean
        m, (N x C).
    covariance
        S, (N x C x C), of any rank.
    num_nodes
        Scrambled Sobol nodes, where they are used.
    """
    if likelihood.is_quadratic:
        return _quadratic(likelihood, y, mean, covariance)
    if isinstance(likelihood, ElementwiseLikelihood):
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        # the root must have a derivative
        scale = variance.clamp(min=torch.finfo(mean.dtype).tiny).sqrt()
        chunks = row_chunks(len(y), NUM_NODES * _NUM_PANELS * mean.shape[-1])
        parts = [_elementwise(likelihood, y[n], mean[n], scale[n]) for n in chunks]
    else:
        normal, root = quasi_normal(num_nodes, mean), psd_root(covariance)
        chunks = row_chunks(len(y), normal.numel())
        parts = [_over_nodes(likelihood, y[n], mean[n], root[n], normal) for n in chunks]
    return torch.cat(parts)


def _quadratic(likelihood: Likelihood, y: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """log p(y | m) - ½ tr(Rᵀ S R)."""
    root = likelihood.curvature_root(y, mean)
    half = root.t_apply(covariance).mT  # (N, C, K)
    trace = root.t_apply(half).diagonal(dim1=-2, dim2=-1).sum(-1)
    return likelihood.log_prob(y, mean) - 0.5 * trace


def _elementwise(
    likelihood: ElementwiseLikelihood, y: Tensor, mean: Tensor, scale: Tensor
) -> Tensor:
    """Σ_c ∫ log p(y_c | m_c + √v_c z) N(z | 0, 1) dz, scale = √v (N x C)."""
    here, values, observed = likelihood.split_known(y)

    def integrand(z: Tensor, row: Tensor) -> Tensor:
        return here.rows(row).log_prob_each(values[row], mean[row] + scale[row] * z)

    # a rate e^f has its mass around z = √v
    reach = 10 + scale.detach().clamp(max=20.0)
    breakpoints = torch.linspace(-1, 1, 9, dtype=mean.dtype, device=mean.device)[:, None, None]
    return (observed * normal_mean(integrand, reach * breakpoints)).sum(-1)


def _over_nodes(
    likelihood: Likelihood, y: Tensor, mean: Tensor, root: Tensor, normal: Tensor
) -> Tensor:
    """1/S Σ_s log p(y | m + A ε_s), A Aᵀ = S."""
    return likelihood.log_prob(y, mean + torch.einsum("ncd,sd->snc", root, normal)).mean(0)
