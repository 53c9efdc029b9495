"""The CRPS of continuous predictives without a closed form, by quadrature."""

from __future__ import annotations

import torch
from torch import Tensor

from lingp.likelihoods.predictives.draws import LatentPredictive
from lingp.likelihoods.predictives.quadrature import adapt, row_chunks

_TOLERANCE = 1e-7
LEAST = 1e-7  # tail probabilities below are rounding of the distribution function
_REACH = 20.0  # sinh(20) = 2e8 widths
_SCALARS = 15 * 40 * 15 * 12  # nodes in x, and for each of them in f


def crps_of_reals(predictive: LatentPredictive, y: Tensor) -> Tensor:
    """Of continuous targets (N x T), to about 1e-6 of the width of the distribution.

    Over x = y ± w sinh t: tails of any weight decay fast in t. They are squared, so what the
    distribution function rounds off (1e-7) is negligible.
    """
    precise = predictive.double()
    targets = torch.where(y.isnan(), 0.0, y).double()
    chunks = row_chunks(len(y), _SCALARS * y.shape[1])
    parts = [_of_reals(precise.rows(rows), targets[rows]) for rows in chunks]
    return torch.where(y.isnan(), torch.nan, torch.cat(parts))


def _of_reals(predictive: LatentPredictive, y: Tensor) -> Tensor:
    lower, upper = predictive.interval(0.5)
    width = (upper - lower).clamp(min=torch.finfo(y.dtype).tiny)
    off = torch.maximum(lower - y, y - upper).clamp(min=0) / width
    # t reaches the far side of the distribution from y too
    reach = torch.asinh(off) + _REACH

    def integrand(t: Tensor, index: Tensor) -> Tensor:
        x = y[index] + width[index] * t.sinh()
        below = cdf_at(predictive, x, index)
        part = torch.where(t < 0, below, 1 - below)
        return torch.where(part < LEAST, 0.0, part).square() * t.cosh()

    share = torch.tensor([-1.0, -0.4, -0.2, -0.1, 0.0, 0.1, 0.2, 0.4, 1.0]).to(y)
    panels = adapt(integrand, share[:, None, None] * reach, _TOLERANCE)
    return width * panels.sum(integrand(panels.nodes(), panels.rows), len(y))


def cdf_at(predictive: LatentPredictive, x: Tensor, index: Tensor) -> Tensor:
    """F at several points of each of some rows, (S x P x T), rows by number (P,)."""
    every = index.expand(x.shape[:2]).reshape(-1)
    return predictive.rows(every).cdf(x.flatten(0, 1)).view_as(x)
