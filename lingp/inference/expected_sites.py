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
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from lingp.inference.convergence import ConvergenceWarning
from lingp.inference.data_term import DataTerm
from lingp.inference.posterior import Posterior
from lingp.inference.shards import Shards
from lingp.likelihoods import CurvatureRoot, DenseRoot, DiagonalRoot
from lingp.likelihoods.predictives.draws import quasi_normal
from lingp.likelihoods.predictives.quadrature import row_chunks
from lingp.likelihoods.psd_root import psd_root

NUM_NODES = 256  # moves test log likelihoods by less than 1e-3
TOLERANCE = 1e-3  # of Λ̄, in Frobenius norm over observations
ROUGH = 1e-2  # moves the log density of a row by some 1e-4
_MAX_ITERATIONS = 50
_MEMORY = 4  # steps to extrapolate from
_MIXING = 0.7  # share of a step that is taken past the extrapolated point


@torch.no_grad()
def expected_posterior(
    data: DataTerm,
    outputs: Tensor,
    make_posterior: Callable[[CurvatureRoot], Posterior],
    *,
    start: CurvatureRoot | None = None,
    tolerance: float = TOLERANCE,
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
    start
        A root of Λ̄ of similar hyperparameters, to start from; by default that of Λ(m).
    tolerance
        On how far Λ̄ is from the expectation, relative to its size.

    Warns
    -----
    ConvergenceWarning
        If Λ̄ still moves by more than the tolerance after 50 iterations.
    """
    posterior = make_posterior(data.curvature_root(outputs) if start is None else start)
    points: list[Tensor] = []  # Λ̄ tried
    steps: list[Tensor] = []  # how far the expectation is from it
    curvature, metric = _square(posterior.root), _metric(data)
    for _ in range(_MAX_ITERATIONS):
        step = expected_curvature(data, outputs, posterior.training_covariance()) - curvature
        points, steps = [*points[-_MEMORY:], curvature], [*steps[-_MEMORY:], step]
        change = _norm(metric * step, data.shards)
        size = _norm(metric * (curvature + step), data.shards)
        if not change > tolerance * size:  # also where both are zero: nothing was observed
            return posterior
        curvature = _extrapolated(points, steps, metric, data.shards)
        posterior = make_posterior(_root(curvature, data.shards))
    warnings.warn(
        f"expected curvature did not converge: it still moves by {change / size:.1e} of its size "
        f'after {_MAX_ITERATIONS} iterations (tolerance {tolerance:.0e}); use sites="mean", or a '
        "larger prior precision",
        ConvergenceWarning,
        stacklevel=2,
    )
    return posterior


def expected_curvature(data: DataTerm, mean: Tensor, covariance: Tensor) -> Tensor:
    """E Λ(f_n) under f_n ~ N(mean_n, covariance_n), (N x C x C), by quasi-Monte-Carlo."""
    z, curvature = quasi_normal(NUM_NODES, mean), torch.empty_like(covariance)
    for rows in row_chunks(len(mean), z.numel()):
        nodes = mean[rows].unsqueeze(-1) + psd_root(covariance[rows]) @ z.mT  # (n, C, S)
        curvature[rows] = data.average_curvature(nodes.movedim(-1, 0), rows)
    return curvature


def _metric(data: DataTerm) -> Tensor:
    """w^{-1/2}, (N x 1 x 1): with it a weight has the norm of so many repetitions."""
    if data.weights is None:
        return data.targets.new_ones(1, 1, 1)
    return torch.where(data.weights > 0, data.weights, 1.0).rsqrt().view(-1, 1, 1)


def _norm(x: Tensor, shards: Shards) -> float:
    """The norm over the rows of all processes."""
    return float(shards.sum(torch.linalg.vector_norm(x).square()).sqrt())


def _square(root: CurvatureRoot) -> Tensor:
    """Λ_n = R_n R_nᵀ, (N x C x C)."""
    dense = root.dense()
    return dense @ dense.mT


def _root(curvature: Tensor, shards: Shards) -> CurvatureRoot:
    """R with as few columns as Λ̄ needs: the softmax's has a null direction."""
    if curvature.shape[-1] == 1:
        return DiagonalRoot(curvature.squeeze(-1).sqrt())
    size, needed, columns = curvature.shape[-1], 1, torch.empty_like(curvature)
    for rows in row_chunks(len(curvature), size**2):
        values, vectors = torch.linalg.eigh(curvature[rows])  # ascending
        values = values.clamp(min=0)
        rounding = size * torch.finfo(values.dtype).eps * values[:, -1:]
        needed = max(needed, int((values > rounding).sum(-1).max()))
        columns[rows] = vectors * values.sqrt().unsqueeze(-2)
    return DenseRoot(columns[..., size - int(shards.largest(needed)) :])


def _extrapolated(
    points: list[Tensor], steps: list[Tensor], metric: Tensor, shards: Shards
) -> Tensor:
    """The next Λ̄: the combination of steps that cancel best, made positive semi-definite.

    Worked through some rows at a time: beside the history, one array of its size is made.
    """
    if len(points) == 1:
        return points[0] + steps[0]
    parts = list(row_chunks(len(points[0]), len(points) * points[0][0].numel()))
    triangle = points[0].new_empty(0, len(steps))
    for rows in parts:
        scale = metric if len(metric) == 1 else metric[rows]
        columns = [*_moves(steps, rows), steps[-1][rows]]
        measured = torch.stack([(scale * c).flatten() for c in columns], -1)
        triangle = torch.linalg.qr(torch.cat([triangle, measured]), mode="r").R
    triangle = shards.fewer_rows(triangle)
    share = torch.linalg.lstsq(triangle[:, :-1], triangle[:, -1:]).solution.squeeze(-1)
    following = torch.empty_like(points[0])
    for rows in parts:
        step = _MIXING * steps[-1][rows]
        for weight, move, change in zip(
            share, _moves(points, rows), _moves(steps, rows), strict=True
        ):
            step -= weight * (move + _MIXING * change)
        following[rows] = _positive(points[-1][rows] + step)
    return following


def _moves(history: list[Tensor], rows: slice) -> Iterator[Tensor]:
    """The differences between successive arrays, at some rows."""
    return (later[rows] - earlier[rows] for earlier, later in pairwise(history))


def _positive(matrix: Tensor) -> Tensor:
    """The nearest positive semi-definite matrix, (n x C x C)."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).unsqueeze(-2)) @ vectors.mT
