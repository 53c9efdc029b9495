"""The CRPS of continuous predictives without a closed form, by quadrature."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import torch
from torch import Tensor

from lingp.likelihoods.predictives.elementwise import ElementwisePredictive
from lingp.likelihoods.predictives.heteroscedastic import HeteroscedasticPredictive
from lingp.likelihoods.predictives.quadrature import adapt, row_chunks

Either = HeteroscedasticPredictive | ElementwisePredictive
AnyPredictive = TypeVar("AnyPredictive", bound=Either)

_TOLERANCE = 1e-7
LEAST = 1e-7  # tail probabilities below are rounding of the distribution function
_REACH = 20.0  # sinh(20) = 2e8 widths
_SCALARS = 15 * 40 * 15 * 12  # nodes in x, and for each of them in f
_NODES = (48, 96, 192, 384)


def crps_of_reals(
    predictive: Either,
    y: Tensor,
    known: Tensor | None,
) -> Tensor:
    """Of continuous targets (N x T), to about 1e-6 of the width of the distribution.

    Over x = y ± w sinh t: tails of any weight decay fast in t. They are squared, so what the
    distribution function rounds off (1e-7) is negligible.
    """
    precise = in_double(predictive)
    targets = torch.where(y.isnan(), 0.0, y).double()
    beside = None if known is None else known.double()
    chunks = row_chunks(len(y), _SCALARS * y.shape[1])
    parts = [_of_reals(rows_of(precise, rows, beside), targets[rows]) for rows in chunks]
    return torch.where(y.isnan(), torch.nan, torch.cat(parts))


def _of_reals(predictive: Either, y: Tensor) -> Tensor:
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


def crps_of_mixture(predictive: HeteroscedasticPredictive, y: Tensor) -> Tensor:
    """Of normals that are mixed over one variable z ~ N(0, 1), targets (N x T), to about 1e-7.

    E|X - y| - ½ E|X - X'| with closed forms given z (and z'), and the trapezoidal rule over these,
    which converges exponentially where conditional means move by less than the noise from node to
    node. Nodes are doubled until it has; the few rows where it hasn't go by their distribution
    function.
    """
    precise = in_double(predictive)
    targets = torch.where(y.isnan(), 0.0, y).double()
    scores, pending = torch.full_like(targets, torch.nan), torch.arange(len(y), device=y.device)
    last = None
    for number in _NODES:
        value, scale = _by_nodes(precise, targets, pending, number)
        if last is not None:
            settled = ((value - last).abs() <= _TOLERANCE * scale).all(1)
            scores[pending[settled]] = value[settled]
            pending, value = pending[~settled], value[~settled]
        last = value
    if len(pending):
        scores[pending] = crps_of_reals(rows_of(precise, pending, None), targets[pending], None)
    return torch.where(y.isnan(), torch.nan, scores)


def _by_nodes(
    predictive: HeteroscedasticPredictive, y: Tensor, pending: Tensor, number: int
) -> tuple[Tensor, Tensor]:
    """The score of some rows with so many nodes, and ½ E|X - X'|, (n x T) each."""
    found = []
    for rows in pending.split(max(1, 2**20 // (number**2 * y.shape[1]))):
        part = rows_of(predictive, rows, None)
        spread = part.covariance.diagonal(dim1=-2, dim2=-1)[:, y.shape[1] :].clamp(min=0).sqrt()
        lower = -9 - spread  # where φ(z) / g has its mass: g may be as small as exp(f₂)
        step = (9 - lower) / (number - 1)
        z = lower + step * torch.arange(number).to(y)[:, None, None]
        weight = step * (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
        mean, variance = part.given(z)
        apart = (weight * mean_distance(y[rows] - mean, variance.sqrt())).sum(0)
        pairs = mean_distance(mean - mean.unsqueeze(1), (variance + variance.unsqueeze(1)).sqrt())
        within = 0.5 * torch.einsum("qnt,rqnt,rnt->nt", weight, pairs, weight)
        found.append((apart - within, within))
    value, scale = zip(*found, strict=True)
    return torch.cat(value), torch.cat(scale)


def mean_distance(off: Tensor, stddev: Tensor) -> Tensor:
    """m (2 Φ(m/σ) - 1) + 2 σ φ(m/σ): E|X| of X ~ N(m, σ²), σ > 0."""
    w = off / stddev
    density = (-0.5 * w.square()).exp() / math.sqrt(2 * math.pi)
    return off * torch.special.erf(w / math.sqrt(2)) + 2 * stddev * density


def cdf_at(predictive: Either, x: Tensor, index: Tensor) -> Tensor:
    """F at several points of each of some rows, (S x P x T), rows by number (P,)."""
    every = index.expand(x.shape[:2]).reshape(-1)
    return rows_of(predictive, every, None).cdf(x.flatten(0, 1)).view_as(x)


def rows_of(predictive: AnyPredictive, rows: slice | Tensor, known: Tensor | None) -> AnyPredictive:
    """Some rows, with these known quantities instead where they are given (for all rows)."""
    part: dict[str, Any] = {
        "location": predictive.location[rows],
        "covariance": predictive.covariance[rows],
    }
    if isinstance(predictive, ElementwisePredictive):
        beside = predictive.known if known is None else known
        part["known"] = None if beside is None else beside[rows]
    return dataclasses.replace(predictive, **part)


def in_double(predictive: AnyPredictive) -> AnyPredictive:
    """The same distribution in float64."""
    part: dict[str, Any] = {
        "location": predictive.location.double(),
        "covariance": predictive.covariance.double(),
    }
    if isinstance(predictive, ElementwisePredictive):
        part["known"] = None if predictive.known is None else predictive.known.double()
    return dataclasses.replace(predictive, **part)
