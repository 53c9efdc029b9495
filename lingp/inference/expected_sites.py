"""Curvature averaged over the posterior: the best Gaussian around a fixed mean.

With q(f) = N(m, S) and m held, the variational bound of the linearised model is stationary in S at

    Λ̄_n = E Λ(f_n),  f_n ~ N(m_n, C_n),       C_n = [J Σ0^{1/2} (I + Φ̄ᵀ Φ̄)⁻¹ Σ0^{1/2} Jᵀ]_nn

with Φ̄ made of a root of Λ̄ (Opper and Archambeau, 2009, "The variational Gaussian approximation
revisited", equation 15; where Λ is a GGN or Fisher form, so is its mean). Laplace takes Λ(m_n): a
classifier that is sure has almost none there, however unsure of f_n the posterior is, and the
posterior then stays as wide as the prior in directions that the data do determine.

The fixed point is found by Anderson's extrapolation (1965) of the last few steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from lingp.inference.convergence import ConvergenceWarning
from lingp.inference.data_term import DataTerm
from lingp.inference.posterior import Posterior
from lingp.inference.shards import Shards
from lingp.likelihoods import CurvatureRoot, DenseRoot, DiagonalRoot
from lingp.likelihoods.predictives.draws import quasi_normal
from lingp.likelihoods.psd_root import psd_root

NUM_NODES = 256  # moves test log likelihoods by less than 1e-3
TOLERANCE = 1e-3  # of Λ̄, in Frobenius norm over observations
_MAX_ITERATIONS = 50
_MEMORY = 4  # steps to extrapolate from
_MIXING = 0.7  # share of a step that is taken past the extrapolated point


@torch.no_grad()
def expected_posterior(
    data: DataTerm, outputs: Tensor, make_posterior: Callable[[CurvatureRoot], Posterior]
) -> Posterior:
    """The posterior whose curvature is its own expectation.

    Parameters
    ----------
    data
        Gives Λ(f).
    outputs
        m, the posterior's mean at the training data, (N x C).
    make_posterior
        The posterior for a curvature root.

    Warns
    -----
    ConvergenceWarning
        If Λ̄ still moves by more than `TOLERANCE` after 50 iterations.
    """
    posterior = make_posterior(data.curvature_root(outputs))
    points: list[Tensor] = []  # Λ̄ tried
    steps: list[Tensor] = []  # how far the expectation is from it
    curvature, metric = _square(posterior.root), _metric(data)
    for _ in range(_MAX_ITERATIONS):
        step = expected_curvature(data, outputs, posterior.training_covariance()) - curvature
        points, steps = [*points[-_MEMORY:], curvature], [*steps[-_MEMORY:], step]
        change = _norm(metric * step, data.shards)
        size = _norm(metric * (curvature + step), data.shards)
        if not change > TOLERANCE * size:  # also where both are zero: nothing was observed
            return posterior
        curvature = _extrapolated(points, steps, metric, data.shards)
        posterior = make_posterior(_root(curvature, data.shards))
    warnings.warn(
        f"expected curvature did not converge: it still moves by {change / size:.1e} of its size after "
        f'{_MAX_ITERATIONS} iterations (tolerance {TOLERANCE:.0e}); use sites="mean", or a larger '
        "prior precision",
        ConvergenceWarning,
        stacklevel=2,
    )
    return posterior


def expected_curvature(data: DataTerm, mean: Tensor, covariance: Tensor) -> Tensor:
    """E Λ(f_n) under f_n ~ N(mean_n, covariance_n), (N x C x C), by quasi-Monte-Carlo."""
    root, total = psd_root(covariance), torch.zeros_like(covariance)
    for z in quasi_normal(NUM_NODES, mean):
        total += _square(data.curvature_root(mean + root @ z))
    return total / NUM_NODES


def _metric(data: DataTerm) -> Tensor:
    """w^{-1/2}, (N x 1 x 1): with it a weight has the norm of so many repetitions."""
    if data.weights is None:
        return data.targets.new_ones(1, 1, 1)
    return torch.where(data.weights > 0, data.weights, 1.0).rsqrt().view(-1, 1, 1)


def _norm(x: Tensor, shards: Shards) -> float:
    """The norm over the rows of all processes."""
    return float(shards.sum(x.square().sum()).sqrt())


def _square(root: CurvatureRoot) -> Tensor:
    """Λ_n = R_n R_nᵀ, (N x C x C)."""
    dense = root.dense()
    return dense @ dense.mT


def _root(curvature: Tensor, shards: Shards) -> CurvatureRoot:
    """R with as few columns as Λ̄ needs: the softmax's has a null direction."""
    if curvature.shape[-1] == 1:
        return DiagonalRoot(curvature.squeeze(-1).sqrt())
    values, vectors = torch.linalg.eigh(curvature)  # ascending
    values = values.clamp(min=0)
    rounding = curvature.shape[-1] * torch.finfo(values.dtype).eps * values[:, -1:]
    needed = int(shards.largest(int((values > rounding).sum(-1).max())))
    columns = vectors * values.sqrt().unsqueeze(-2)
    return DenseRoot(columns[..., curvature.shape[-1] - max(1, needed) :])


def _extrapolated(
    points: list[Tensor], steps: list[Tensor], metric: Tensor, shards: Shards
) -> Tensor:
    """The next Λ̄: the combination of steps that cancel best, made positive semi-definite."""
    if len(points) == 1:
        return points[0] + steps[0]
    moves = torch.stack([(b - a).flatten() for a, b in pairwise(points)], -1)
    changes = torch.stack([(b - a).flatten() for a, b in pairwise(steps)], -1)
    columns = [b - a for a, b in pairwise(steps)] + [steps[-1]]
    measured = shards.fewer_rows(torch.stack([(metric * c).flatten() for c in columns], -1))
    share = torch.linalg.lstsq(measured[:, :-1], measured[:, -1:]).solution
    step = steps[-1].flatten().mul(_MIXING) - ((moves + _MIXING * changes) @ share).squeeze(-1)
    values, vectors = torch.linalg.eigh(points[-1] + step.view_as(points[-1]))
    return (vectors * values.clamp(min=0).unsqueeze(-2)) @ vectors.mT
