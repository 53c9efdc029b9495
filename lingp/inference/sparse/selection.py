"""Which of a set of candidates become inducing points, from the candidates' kernel matrix.

A candidate is a block of C rows of the kernel (one input with its C outputs); single rows are
blocks of C = 1. All rules condition on the chosen candidates Z and say what they leave:

    residual trace   tr[K - K_Z K_ZZ⁻¹ K_Zᵀ]

    greedy      the candidate of largest residual trace next: pivoted Cholesky by blocks, with the
                approximation guarantees of Harbrecht, Peters & Schneider (2012, Appl. Num. Math.
                62); as initialisation of inducing inputs in Burt, Rasmussen & van der Wilk (2020,
                JMLR 21, section 4.2)
    kmeans++    with probability ∝ the squared distance to the nearest chosen one, in the kernel's
                metric d²(x, z) = tr[K_xx + K_zz - K_xz - K_zx] (Arthur & Vassilvitskii, 2007)
    random      any of the others

A candidate of which only rounding is left (a copy of a chosen one) is never chosen by the first
two, which then give fewer points than asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

Rule = Literal["greedy", "kmeans++", "random"]

ROUNDING = 64
"""Variance below so many eps of a candidate's own prior variance is taken for rounding."""


@dataclass(frozen=True)
class ChosenCandidates:
    """The chosen candidates and what they leave.

    Attributes
    ----------
    chosen
        (M,), their numbers, in the order they were chosen.
    residual
        (M,), the residual trace after each of them as a share of the candidates' whole trace; None
        where the rule didn't need it.
    """

    chosen: Tensor
    residual: Tensor | None = None


class ConditionalVariance:
    """The variance that candidates have left, given some of them: Cholesky by blocks of C rows.

    One block of rows of the factor F, K ≈ Fᵀ F, is added for each candidate conditioned on, from
    an eigendecomposition of its own residual block, so that a singular block is one with fewer
    directions. (Pivoted Cholesky of linear_operator 0.6 conditions on single rows only, divides by
    a zero or negative pivot once the rank is exhausted, and copies all of F at every step.)

    Parameters
    ----------
    kernel
        K of n candidates, (n·C x n·C), data-major.
    block
        C.
    max_points
        The most candidates that will be conditioned on.

    Attributes
    ----------
    prior, left
        (n,), trace of each candidate's block of K before and after conditioning. Where only
        rounding is left it is 0.
    """

    def __init__(self, kernel: Tensor, block: int, max_points: int) -> None:
        self.kernel, self.block = kernel, block
        self._factor = kernel.new_empty(max_points * block, len(kernel))
        self._rows = 0
        self._variances = kernel.diagonal().clone()
        self.prior = self._variances.view(-1, block).sum(-1)
        self._floor = ROUNDING * torch.finfo(kernel.dtype).eps * self.prior
        self.left = self._left()

    def _left(self) -> Tensor:
        left = self._variances.view(-1, self.block).sum(-1)
        return torch.where(left > self._floor, left, 0)

    def residual(self) -> Tensor:
        """Share of the whole trace that is left, 0-d."""
        return self.left.sum() / self.prior.sum().clamp_min(torch.finfo(self.prior.dtype).tiny)

    def condition(self, candidate: int) -> None:
        """Condition on all C rows of a candidate."""
        rows = slice(candidate * self.block, (candidate + 1) * self.block)
        done = self._factor[: self._rows]
        covariance = torch.addmm(self.kernel[rows], done[:, rows].mT, done, alpha=-1)  # (C, n·C)
        values, vectors = torch.linalg.eigh(covariance[:, rows])
        # directions of which only rounding is left get weight 0
        resolved = values > self._floor[candidate] / self.block
        new = (vectors * torch.where(resolved, values.rsqrt(), 0)).mT @ covariance
        self._factor[self._rows : self._rows + self.block] = new
        self._rows += self.block
        self._variances -= new.square().sum(0)
        self._variances[rows] = 0
        self.left = self._left()


@torch.no_grad()
def choose_candidates(
    rule: Rule,
    kernel: Tensor,
    block: int,
    max_points: int,
    *,
    tolerance: float | None = None,
    generator: torch.Generator | None = None,
    num_trials: int | None = None,
) -> ChosenCandidates:
    """Candidates by one of the rules.

    Parameters
    ----------
    rule
        Its name.
    kernel
        (n·C x n·C), data-major.
    block
        C.
    max_points
        M at most; fewer are chosen where only rounding would be left.
    tolerance
        Stop at the first M whose residual trace is at most this share of the whole.
    generator
        Source of randomness; torch's global one by default.
    num_trials
        Draws of "kmeans++" for every point after the first, of which the one that leaves the
        smallest sum of squared distances is kept; 2 + log M by default, as in scikit-learn.

    Raises
    ------
    ValueError
        If `max_points` isn't from 1 to n.
    """
    count = len(kernel) // block
    if not 1 <= max_points <= count:
        raise ValueError(
            f"max_points: got {max_points}; expected 1 to {count}, the number of candidates"
        )
    variance = None
    if rule == "greedy" or tolerance is not None:
        variance = ConditionalVariance(kernel, block, max_points)
    if rule == "greedy":
        assert variance is not None
        order = _largest_left(variance)
    elif rule == "kmeans++":
        order = _spread_out(kernel, block, num_trials or 2 + int(math.log(max_points)), generator)
    else:
        order = iter(random_order(count, generator).tolist())
    chosen: list[int] = []
    residual: list[Tensor] = []
    for candidate in islice(order, max_points):
        chosen.append(candidate)
        if variance is not None:
            variance.condition(candidate)
            residual.append(variance.residual())
            if tolerance is not None and float(residual[-1]) <= tolerance:
                break
    index = torch.tensor(chosen, dtype=torch.long, device=kernel.device)
    if variance is None:
        return ChosenCandidates(index)
    return ChosenCandidates(index, torch.stack(residual) if residual else kernel.new_empty(0))


def random_order(count: int, generator: torch.Generator | None = None) -> Tensor:
    """A permutation of 0..count-1, drawn where the generator is."""
    device = "cpu" if generator is None else generator.device
    return torch.randperm(count, generator=generator, device=device)


def _largest_left(variance: ConditionalVariance) -> Iterator[int]:
    """The candidate of largest residual trace next, given that each one is conditioned on."""
    while bool(variance.left.any()):
        yield int(variance.left.argmax())


def _spread_out(
    kernel: Tensor, block: int, num_trials: int, generator: torch.Generator | None
) -> Iterator[int]:
    """Candidates by D² sampling, until all others are copies of chosen ones."""
    shape = (len(kernel) // block, block, len(kernel) // block, block)
    covariances = kernel.view(shape).diagonal(dim1=1, dim2=3)  # (n, n, C)
    own = kernel.diagonal().view(-1, block).sum(-1)  # (n,)
    floor = ROUNDING * torch.finfo(kernel.dtype).eps

    def squared_distances(candidates: Tensor) -> Tensor:
        """To all candidates, (T, n)."""
        total = own[candidates].unsqueeze(-1) + own
        distances = total - 2 * covariances[candidates].sum(-1)
        return torch.where(distances > floor * total, distances, 0)

    candidate = _draw(torch.ones_like(own), 1, generator)
    nearest = squared_distances(candidate).squeeze(0)
    yield int(candidate)
    while bool(nearest.any()):
        trials = _draw(nearest, num_trials, generator)
        left = torch.minimum(nearest, squared_distances(trials))  # (T, n)
        best = left.sum(-1).argmin()
        nearest = left[best]
        yield int(trials[best])


def _draw(weights: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """`count` independent draws with probability ∝ weights, by the inverse of their sums."""
    device = "cpu" if generator is None else generator.device
    uniform = torch.rand(count, generator=generator, device=device, dtype=torch.float64)
    sums = weights.double().cumsum(0)
    # strictly below the whole sum, and right of equal sums: nothing of weight 0 is drawn
    target = (uniform.to(sums.device) * sums[-1]).clamp_max(sums[-1] * (1 - 2**-52))
    return torch.searchsorted(sums, target, right=True)
