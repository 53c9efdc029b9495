"""Curvature averaged over the posterior: the best Gaussian around a fixed mean.

With q(f) = N(m, S) and m held, the variational bound of the linearised model is stationary in S at

    Λ̄_n = E Λ(f_n),  f_n ~ N(m_n, C_n),       C_n = [J Σ0^{1/2} (I + Φ̄ᵀ Φ̄)⁻¹ Σ0^{1/2} Jᵀ]_nn

with Φ̄ made of a root of Λ̄ (Opper and Archambeau, 2009, "The variational Gaussian approximation
revisited", equation 15; where Λ is a GGN or Fisher form, so is its mean). Laplace takes Λ(m_n): a
classifier that is sure has almost none there, however unsure of f_n the posterior is, and the
posterior then stays as wide as the prior in directions that the data do determine.

A posterior is costly, the curvature of a datum is not. So each step settles every datum with the
others' part of its posterior, the cavity C_-n, held as it is:

    Λ_n = E Λ(f_n),  f_n ~ N(m_n, (C_-n⁻¹ + Λ_n)⁻¹),       C_-n⁻¹ = C_n⁻¹ - Λ̄_n

and makes the next posterior of all of them, as expectation propagation does (Minka, 2001). What is
left of a step is what the data do to each other; Anderson's extrapolation (1965) of the last few
steps deals with that. The first step has the prior for a cavity.
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
from lingp.likelihoods import CurvatureRoot, DenseRoot, DiagonalRoot
from lingp.likelihoods.predictives.draws import quasi_normal
from lingp.likelihoods.predictives.quadrature import row_chunks
from lingp.linalg.psd import nearest_psd, psd_root
from lingp.runtime.progress import count
from lingp.runtime.shards import Shards

NUM_NODES = 256  # moves test log likelihoods by less than 1e-3
TOLERANCE = 1e-3  # of Λ̄, in Frobenius norm over observations
ROUGH = 1e-2  # moves the log density of a row by some 1e-4
TYPICAL = 5  # posteriors until TOLERANCE, as measured on classifiers
_MAX_ITERATIONS = 50
_MEMORY = 4  # steps to extrapolate from
_SETTLING = 20  # steps of a datum's own curvature at most
_SETTLED = 1e-4  # of it, which ends these steps
_SHARES = 0.01, 1.0  # of a step of a datum's own curvature
_LEVERAGE = 1 - 1e-6  # the most that a datum's own part of its posterior counts for


@torch.no_grad()
def expected_posterior(
    data: DataTerm,
    outputs: Tensor,
    make_posterior: Callable[[CurvatureRoot], Posterior],
    start: CurvatureRoot,
    *,
    tolerance: float = TOLERANCE,
    progress: bool = False,
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
        A root of Λ̄ to start from: of similar hyperparameters, or `first_root`.
    tolerance
        The bound on how far Λ̄ is from the expectation, relative to its size.
    progress
        Whether a bar counts the posteriors, once they have taken two seconds.

    Warns
    -----
    ConvergenceWarning
        If Λ̄ still moves by more than the tolerance after 50 posteriors.
    """
    points: list[Tensor] = []  # Λ̄ tried
    steps: list[Tensor] = []  # how far they were from settled
    metric, root = _metric(data), start
    with count("averaging curvature", total=TYPICAL, show=progress) as step_done:
        for _ in range(_MAX_ITERATIONS):
            posterior = make_posterior(root)
            step_done()
            curvature, (informed, unseen) = _square(root), posterior.at_data
            whole = informed if unseen is None else informed + unseen
            expected = expected_curvature(data, outputs, whole)
            change = _norm(metric * (expected - curvature), data.shards)
            size = _norm(metric * expected, data.shards)
            if not change > tolerance * size:  # also where both are zero: nothing was observed
                return posterior
            half = cavity_root(informed, curvature, data.weights)
            step = settled_curvature(data, outputs, half, expected, unseen) - curvature
            points, steps = [*points[-_MEMORY:], curvature], [*steps[-_MEMORY:], step]
            root = _root(_extrapolated(points, steps, metric, data.shards), data.shards)
    warnings.warn(
        f"expected curvature did not converge: it still moves by {change / size:.1e} of its size "
        f'after {_MAX_ITERATIONS} posteriors (tolerance {tolerance:.0e}); use sites="mean", or a '
        "larger prior precision",
        ConvergenceWarning,
        stacklevel=2,
    )
    return posterior


@torch.no_grad()
def first_root(data: DataTerm, outputs: Tensor, prior_covariance: Tensor) -> CurvatureRoot:
    """A root of Λ̄ where every datum is alone with the prior.

    Parameters
    ----------
    data, outputs
        The same as for `expected_posterior`.
    prior_covariance
        J_n Σ0 J_nᵀ, (N x C x C).
    """
    half = psd_root(prior_covariance)
    at_mean = _square(data.curvature_root(outputs))
    return _root(settled_curvature(data, outputs, half, at_mean), data.shards)


def expected_curvature(data: DataTerm, mean: Tensor, covariance: Tensor) -> Tensor:
    """E Λ(f_n) under f_n ~ N(mean_n, covariance_n), (N x C x C), by quasi-Monte-Carlo."""
    z, curvature = quasi_normal(NUM_NODES, mean), torch.empty_like(covariance)
    for rows in row_chunks(len(mean), z.numel()):
        curvature[rows] = _averaged(data, mean, psd_root(covariance[rows]), z, rows)
    return curvature


def cavity_root(covariance: Tensor, curvature: Tensor, weights: Tensor | None) -> Tensor:
    """A_n with A_n A_nᵀ = C_-n = (C_n⁻¹ - Λ_n)⁻¹, (N x C x C), without inverses.

    That is B (I - B Λ_n B)⁻¹ B with B B = C_n. A datum that rounding says knows all there is about
    its outputs is taken to know a little less; where the next step goes depends on that, not where
    steps end. Of a datum with a weight above one, one repetition is left out.

    Parameters
    ----------
    covariance
        C_n, (N x C x C).
    curvature
        Λ_n with the weight in it, (N x C x C).
    weights
        (N,), or None for 1.
    """
    half = psd_root(covariance)
    leverage, vectors = torch.linalg.eigh(half @ (_single(weights) * curvature) @ half)
    return half @ (vectors * (1 - leverage.clamp(0, _LEVERAGE)).rsqrt().unsqueeze(-2))


def _single(weights: Tensor | None) -> Tensor | float:
    """The share of a datum's weight that one repetition has, (N x 1 x 1)."""
    return 1.0 if weights is None else weights.clamp(min=1).reciprocal().view(-1, 1, 1)


def settled_curvature(
    data: DataTerm, mean: Tensor, half: Tensor, start: Tensor, unseen: Tensor | None = None
) -> Tensor:
    """Λ_n = E Λ(f_n) under f_n ~ N(mean_n, (C_-n⁻¹ + Λ_n)⁻¹), (N x C x C).

    Parameters
    ----------
    data, mean
        The likelihood, and the mean of f, (N x C).
    half
        Roots of C_-n, (N x C x C).
    start
        Λ_n to start from.
    unseen
        Covariance of f_n that no curvature lessens, (N x C x C); None: there is none.
    """
    z, curvature = quasi_normal(NUM_NODES, mean), start.clone()
    eye = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
    one = torch.as_tensor(_single(data.weights)).to(mean).expand(len(mean), 1, 1)

    def away(own: Tensor, rows: slice) -> Tensor:
        """How far some data are from settled, (n x C x C)."""
        factor = torch.linalg.cholesky(eye + half[rows].mT @ (one[rows] * own) @ half[rows])
        part = torch.linalg.solve_triangular(factor, half[rows].mT, upper=False)
        covariance = part.mT @ part
        if unseen is not None:
            covariance = covariance + unseen[rows]
        return _averaged(data, mean, psd_root(covariance), z, rows) - own

    for rows in row_chunks(len(mean), z.numel()):
        own, share = curvature[rows], curvature.new_full((), 0.5)
        rest = away(own, rows)
        for _ in range(_SETTLING):
            # each datum stops by itself: none depends on which others are worked on with it
            moving = rest.flatten(1).norm(dim=1) > _SETTLED * own.flatten(1).norm(dim=1)
            if not bool(moving.any()):
                break
            own = own + moving.view(-1, 1, 1) * share * rest
            following = away(own, rows)
            share, rest = _aitken(share, rest, following), following
        curvature[rows] = own
    return curvature


def _aitken(share: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The share of the next step, (n x 1 x 1), by what the last one did (Irons and Tuck, 1969).

    Never more than one, so that a positive semi-definite curvature stays it.
    """
    turn = after - before
    product, square = (turn * before).sum((1, 2)), turn.square().sum((1, 2))
    found = -share * (product / square.clamp(min=torch.finfo(turn.dtype).tiny)).view(-1, 1, 1)
    return found.clamp(*_SHARES)


def _averaged(data: DataTerm, mean: Tensor, root: Tensor, z: Tensor, rows: slice) -> Tensor:
    """E Λ(f_n) of some rows, with roots of their covariances (n x C x C) and nodes z (S x C)."""
    nodes = mean[rows].unsqueeze(-1) + root @ z.mT  # (n, C, S)
    return data.average_curvature(nodes.movedim(-1, 0), rows)


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
        step = steps[-1][rows].clone()
        for weight, move, change in zip(
            share, _moves(points, rows), _moves(steps, rows), strict=True
        ):
            step -= weight * (move + change)
        following[rows] = nearest_psd(points[-1][rows] + step)
    return following


def _moves(history: list[Tensor], rows: slice) -> Iterator[Tensor]:
    """The differences between successive arrays, at some rows."""
    return (later[rows] - earlier[rows] for earlier, later in pairwise(history))
