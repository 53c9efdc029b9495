"""Standard deviations of predictions, and covariances between rows."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from lingp.likelihoods import Heteroscedastic
from lingp.models import LinearizedGP, Prediction

_WITHIN_ONE_STD = math.erf(math.sqrt(0.5))  # probability, of a normal


def standard_deviations(prediction: Prediction) -> Tensor:
    """Of each target, (n, T); a mixture's is half the width of the central 68.3 %.

    Its variance can be ruled by a far tail, where the precision comes near zero.
    """
    if not isinstance(prediction.layout.likelihood, Heteroscedastic):
        return columns(prediction.stddev)
    lower, upper = prediction.interval(_WITHIN_ONE_STD)
    return columns(upper - lower) / 2


def between_rows(gp: LinearizedGP, x: Tensor, std: np.ndarray) -> np.ndarray:
    """Covariance of each target between rows, (n, n, T), with standard deviations (n, T).

    Of a mixture, correlations are those of y = f₁ / g + noise, with g at the mean of f₂.
    """
    likelihood = gp.likelihood
    if not isinstance(likelihood, Heteroscedastic):
        return _own_blocks(gp.predict_joint(x).covariance, len(std))
    latent = gp.posterior(x)
    precision = array(likelihood.precision(latent.mean.chunk(2, -1)[1]))
    first = _own_blocks(latent.covariance_matrix, len(std))[..., : std.shape[1]]
    covariance = first / (precision[:, None] * precision)
    rows = np.arange(len(std))
    covariance[rows, rows] += 1 / precision
    ratio = std / np.sqrt(covariance[rows, rows])
    return covariance * ratio[:, None] * ratio


def array(values: Tensor) -> np.ndarray:
    """Float64, on the CPU."""
    return values.detach().cpu().double().numpy()


def columns(values: Tensor) -> Tensor:
    """(n,) or (n, T) as (n, T)."""
    return values.reshape(len(values), -1)


def _own_blocks(joint: Tensor, num_rows: int) -> np.ndarray:
    """(n·C x n·C) covariance of all outputs as (n, n, C), each output with itself."""
    blocks = array(joint).reshape(num_rows, -1, num_rows, len(joint) // num_rows)
    return blocks.diagonal(axis1=1, axis2=3)
