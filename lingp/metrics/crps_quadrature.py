"""The CRPS from distribution functions: ∫ (F(x) - 1[x >= y])² dx, or its sum over counts."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import torch
from torch import Tensor

from lingp.likelihoods.predictives.elementwise import ElementwisePredictive
from lingp.likelihoods.predictives.heteroscedastic import HeteroscedasticPredictive
from lingp.likelihoods.predictives.quadrature import adapt, row_chunks

AnyPredictive = TypeVar("AnyPredictive", HeteroscedasticPredictive, ElementwisePredictive)

_TOLERANCE = 1e-7
_LEAST = 1e-7  # tail probabilities below are rounding of the distribution function
_REACH = 20.0  # sinh(20) = 2e8 widths
_SCALARS = 15 * 40 * 15 * 12  # nodes in x, and for each of them in f
_MOST_COUNTS = 2**14


def crps_of_reals(
    predictive: HeteroscedasticPredictive | ElementwisePredictive,
    y: Tensor,
    known: Tensor | None,
) -> Tensor:
    """Of continuous targets (N x T), to about 1e-6 of the width of the distribution.

    Over x = y ± w sinh t: tails of any weight decay fast in t. They are squared, so what the
    distribution function rounds off (1e-7) is negligible.
    """
    precise = _in_double(predictive)
    targets = torch.where(y.isnan(), 0.0, y).double()
    beside = None if known is None else known.double()
    chunks = row_chunks(len(y), _SCALARS * y.shape[1])
    parts = [_of_reals(_rows(precise, rows, beside), targets[rows]) for rows in chunks]
    return torch.where(y.isnan(), torch.nan, torch.cat(parts))


def _of_reals(predictive: HeteroscedasticPredictive | ElementwisePredictive, y: Tensor) -> Tensor:
    lower, upper = predictive.interval(0.5)
    width = (upper - lower).clamp(min=torch.finfo(y.dtype).tiny)
    off = torch.maximum(lower - y, y - upper).clamp(min=0) / width
    # t reaches the far side of the distribution from y too
    reach = torch.asinh(off) + _REACH

    def integrand(t: Tensor, index: Tensor) -> Tensor:
        x = y[index] + width[index] * t.sinh()
        below = _cdf(predictive, x, index)
        part = torch.where(t < 0, below, 1 - below)
        return torch.where(part < _LEAST, 0.0, part).square() * t.cosh()

    share = torch.tensor([-1.0, -0.4, -0.2, -0.1, 0.0, 0.1, 0.2, 0.4, 1.0]).to(y)
    panels = adapt(integrand, share[:, None, None] * reach, _TOLERANCE)
    return width * panels.sum(integrand(panels.nodes(), panels.rows), len(y))


def crps_of_counts(predictive: ElementwisePredictive, y: Tensor, known: Tensor | None) -> Tensor:
    """Of counts or ordered labels (N x T), the sum over 0, 1, 2, ... to rounding."""
    precise = _in_double(predictive)
    targets = torch.where(y.isnan(), 0.0, y).double()
    beside = None if known is None else known.double()
    whole = _rows(precise, slice(None), beside)
    last = torch.maximum(whole.interval(1 - 2 * _LEAST)[1], targets)
    if float(last.max()) > _MOST_COUNTS:
        row = int(last.amax(1).argmax())
        raise ValueError(
            f"prediction: counts up to {float(last.max()):.3g} are likely in row {row}, too many "
            "to sum over; estimate the score from draws by num_samples=1000, generator=..."
        )
    total = torch.zeros_like(targets)
    for rows in row_chunks(len(y), _SCALARS * y.shape[1]):
        part, size = _rows(whole, rows, None), int(last[rows].max()) + 1
        steps = max(1, 2**21 // (180 * max(1, targets[rows].numel())))
        for counts in torch.arange(size, dtype=torch.float64, device=y.device).split(steps):
            x = counts[:, None, None].expand(-1, *targets[rows].shape)
            index = torch.arange(len(targets[rows]), device=y.device)
            step = (x >= targets[rows]).double()
            total[rows] += (_cdf(part, x, index) - step).square().sum(0)
    return torch.where(y.isnan(), torch.nan, total)


def _cdf(
    predictive: HeteroscedasticPredictive | ElementwisePredictive, x: Tensor, index: Tensor
) -> Tensor:
    """F at several points of each of some rows, (S x P x T), rows by number (P,)."""
    every = index.expand(x.shape[:2]).reshape(-1)
    return _rows(predictive, every, None).cdf(x.flatten(0, 1)).view_as(x)


def _rows(
    predictive: HeteroscedasticPredictive | ElementwisePredictive,
    rows: slice | Tensor,
    known: Tensor | None,
) -> HeteroscedasticPredictive | ElementwisePredictive:
    """Some rows, with these known quantities instead where they are given (for all rows)."""
    part = {"location": predictive.location[rows], "covariance": predictive.covariance[rows]}
    if isinstance(predictive, ElementwisePredictive):
        beside = predictive.known if known is None else known
        return dataclasses.replace(
            predictive, **part, known=None if beside is None else beside[rows]
        )
    return dataclasses.replace(predictive, **part)


def _in_double(
    predictive: HeteroscedasticPredictive | ElementwisePredictive,
) -> HeteroscedasticPredictive | ElementwisePredictive:
    moments = {
        "location": predictive.location.double(),
        "covariance": predictive.covariance.double(),
    }
    if isinstance(predictive, ElementwisePredictive):
        known = None if predictive.known is None else predictive.known.double()
        return dataclasses.replace(predictive, **moments, known=known)
    return dataclasses.replace(predictive, **moments)
