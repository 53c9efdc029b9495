"""The CRPS of continuous mixtures of normals: closed forms between nodes.

    E|X - y| - ½ E|X - X'|,    X | z ~ N(μ(z), V(z))

with E|X| of a normal given z (and z'), and the trapezoidal rule over these, which converges
exponentially: for Heteroscedastic noise z ~ N(0, 1) carries the noise's own uncertainty, for
Student-t noise it is the logarithm of the precision that makes a normal a t.
"""

from __future__ import annotations

import math

import torch
from scipy.special import lambertw
from torch import Tensor

from lingp.likelihoods import StudentT
from lingp.likelihoods.predictives.draws import LatentPredictive
from lingp.likelihoods.predictives.heteroscedastic import HeteroscedasticPredictive
from lingp.metrics.arguments import as_array
from lingp.metrics.crps_of import mixture_scores
from lingp.metrics.crps_quadrature import crps_of_reals

_TOLERANCE = 1e-7  # of ½ E|X - X'|
_NODES = (48, 96, 192, 384)
_LEAST_FREEDOM = 1.5  # E|X| of heavier tails is infinite, or nearly
_DROP = 34.0  # e^-34 = 2e-15 of the peak is left out


def crps_of_mixture(predictive: LatentPredictive, y: Tensor) -> Tensor:
    """Of targets (N x T), to about 1e-7 of the width of the distribution.

    Nodes are doubled until the score has settled. Rows where it hasn't (conditional means that move
    by more than the noise from node to node) and t-distributions of hardly a mean go by their
    distribution function, which takes longer.
    """
    precise = predictive.double()
    targets = torch.where(y.isnan(), 0.0, y).double()
    scores, pending = torch.full_like(targets, torch.nan), torch.arange(len(y), device=y.device)
    last = None
    for number in _NODES if _has_components(precise) else ():
        value, scale = _at_nodes(precise, targets, pending, number)
        if last is not None:
            settled = ((value - last).abs() <= _TOLERANCE * scale).all(1)
            scores[pending[settled]] = value[settled]
            pending, value = pending[~settled], value[~settled]
        if not len(pending):
            break
        last = value
    if len(pending):
        scores[pending] = crps_of_reals(precise.rows(pending), targets[pending])
    return torch.where(y.isnan(), torch.nan, scores)


def _at_nodes(
    predictive: LatentPredictive, y: Tensor, pending: Tensor, number: int
) -> tuple[Tensor, Tensor]:
    """The score of some rows with so many nodes, and ½ E|X - X'|, (n x T) each."""
    weight, mean, variance = _components(predictive.rows(pending), number)
    nodes_last = (x.movedim(0, -1).reshape(-1, number) for x in (mean, variance.sqrt(), weight))
    arrays = (as_array(x.detach(), "prediction") for x in (*nodes_last, y[pending].flatten()))
    value, scale = (y.new_tensor(x).view_as(y[pending]) for x in mixture_scores(*arrays))
    return value, scale


def _has_components(predictive: LatentPredictive) -> bool:
    likelihood = predictive.likelihood
    if isinstance(likelihood, StudentT):
        return float(likelihood.degrees_of_freedom.detach().min()) >= _LEAST_FREEDOM
    return isinstance(predictive, HeteroscedasticPredictive)


def _components(predictive: LatentPredictive, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, means and variances at so many nodes, (Q x n x T)."""
    if not isinstance(predictive, HeteroscedasticPredictive):
        return _of_student_t(predictive, number)
    size = predictive.location.shape[1] // 2
    spread = predictive.covariance.diagonal(dim1=-2, dim2=-1)[:, size:].clamp(min=0).sqrt()
    lower = -9 - spread  # where φ(z) / g has its mass: g may be as small as exp(f₂)
    z, step = _steps(lower, torch.full_like(lower, 9.0), number)
    weight = step * (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    mean, between, within = predictive.given.moments(z)
    return weight, mean, between + within


def _of_student_t(predictive: LatentPredictive, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """y = f + scale ε / √u with u = e^z ~ Gamma(ν/2, ν/2): N(m, v + scale² / u) given u."""
    likelihood, mean = predictive.likelihood, predictive.location
    assert isinstance(likelihood, StudentT)
    half = likelihood.degrees_of_freedom.to(mean).expand(mean.shape[1]) / 2
    scale = likelihood.scale.to(mean).expand(mean.shape[1])
    # log density of z, but for its constant, and where it times √(1/u) is negligible
    lower = _edge(half, half - 0.5, 0)
    upper = _edge(half, half - 0.5, -1)
    z, step = _steps(lower, upper, number)
    log_weight = half * z - half * z.exp()
    weight = step * (log_weight + half * half.log() - half.lgamma()).exp()
    variance = predictive.covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0)
    total = variance + (scale.square() * (-z).exp()).unsqueeze(1)
    shape = (number, *mean.shape)
    return weight.unsqueeze(1).expand(shape), mean.expand(shape), total


def _edge(rate: Tensor, power: Tensor, branch: int) -> Tensor:
    """Where power·z - rate·e^z has dropped by `_DROP` from its peak, below (0) or above it (-1)."""
    depth = 1 + _DROP / power
    beyond = lambertw((-(-depth).exp()).detach().cpu().numpy(), branch).real
    return (power / rate).log() - depth - power.new_tensor(beyond)


def _steps(lower: Tensor, upper: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Equidistant nodes in front of the given shape, and the step between them."""
    step = (upper - lower) / (number - 1)
    index = torch.arange(number, dtype=lower.dtype, device=lower.device)
    return lower + step * index.reshape(-1, *[1] * lower.dim()), step
