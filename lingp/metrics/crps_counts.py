"""The CRPS of counts and ordered labels: Σ_k (F(k) - 1[k >= y])²."""

from __future__ import annotations

import torch
from torch import Tensor

from lingp.likelihoods import Poisson
from lingp.likelihoods.predictives.draws import LatentPredictive
from lingp.likelihoods.predictives.quadrature import adapt
from lingp.metrics.crps_quadrature import LEAST, cdf_at

_TOLERANCE = 1e-7
_ONE_BY_ONE = 64  # counts summed; larger ones of unbounded counts are integrated
_MOST = 2**14
_SCALARS = 2**21
_NODES = 15 * 12  # of the distribution function


def crps_of_counts(predictive: LatentPredictive, y: Tensor) -> Tensor:
    """Of counts or ordered labels (N x T), to about 1e-6.

    The sum, over what has probability. Poisson and negative binomial distributions are as wide as
    the root of their mean or wider: there the sum from 64 on is an integral (the midpoint form of
    Euler and Maclaurin's formula, with its first correction).
    """
    targets = torch.where(y.isnan(), 0.0, y).double()
    precise = predictive.double()
    last = torch.maximum(precise.interval(1 - 2 * LEAST)[1], targets) + 1  # excluded
    smooth = isinstance(predictive.likelihood, Poisson)
    ends = last.clamp(max=_ONE_BY_ONE) if smooth else last
    if float(ends.max()) > _MOST:
        row = int(ends.amax(1).argmax())
        raise ValueError(
            f"prediction: row {row} may be any of {int(ends.max())} numbers, too many to sum over; "
            "estimate the score from draws by num_samples=1000, generator=..."
        )
    total = _sum(precise, targets, ends)
    if bool((last > ends).any()):
        total = total + _integral(precise, targets, ends, last)
    return torch.where(y.isnan(), torch.nan, total)


def _sum(predictive: LatentPredictive, y: Tensor, ends: Tensor) -> Tensor:
    """Σ over 0 <= k < ends, (N x T)."""
    total = torch.zeros_like(y)
    index = torch.arange(len(y), device=y.device)
    for rows in index.split(max(1, _SCALARS // (_NODES * y.shape[1]))):
        size = int(ends[rows].max())
        counts = torch.arange(size, dtype=y.dtype, device=y.device)
        for some in counts.split(max(1, _SCALARS // (_NODES * y[rows].numel()))):
            k = some[:, None, None].expand(-1, *y[rows].shape)
            off = cdf_at(predictive, k, rows) - (k >= y[rows]).double()
            total[rows] += torch.where(k < ends[rows], off, 0.0).square().sum(0)
    return total


def _integral(predictive: LatentPredictive, y: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Σ over start <= k < end, (N x T), as two integrals that meet at y."""
    middle = torch.minimum(torch.maximum(y, start), end)
    below = _smooth_sum(predictive, start, middle, upper=False)
    return below + _smooth_sum(predictive, middle, end, upper=True)


def _smooth_sum(predictive: LatentPredictive, start: Tensor, end: Tensor, *, upper: bool) -> Tensor:
    """Σ_{start <= k < end} h(k) = ∫ h - (h'(end - ½) - h'(start - ½)) / 24, from ½ before each."""
    a, b = start - 0.5, torch.maximum(end, start) - 0.5
    every = torch.arange(len(a), device=a.device)

    def h(x: Tensor, index: Tensor) -> Tensor:
        below = cdf_at(predictive, x, index)
        return ((1 - below) if upper else below).square()

    def integrand(u: Tensor, index: Tensor) -> Tensor:
        x = u.exp()  # counts of widely different sizes
        return h(x, index) * x

    share = torch.linspace(0, 1, 5).to(a)[:, None, None]
    panels = adapt(integrand, torch.lerp(a.log(), b.log(), share), _TOLERANCE)
    total = panels.sum(integrand(panels.nodes(), panels.rows), len(a))
    steps = [h((x + d).unsqueeze(0), every)[0] for x in (a, b) for d in (-0.5, 0.5)]
    return total - ((steps[3] - steps[2]) - (steps[1] - steps[0])) / 24
