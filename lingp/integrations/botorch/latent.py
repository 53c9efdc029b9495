"""The latent outputs of a linearised network at batches of points, with gradients in the points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference import Posterior
from lingp.inference.weight_covariance import WeightCovariance
from lingp.models import LinearizedGP
from lingp.models.latents import Latents

_MOST_COLUMNS = 1 << 23  # numbers in V
_MOST_ROWS = 1 << 18  # numbers in the Jacobian at the points, past which the factors are faster


@dataclass(frozen=True)
class WeightLatents:
    """Outputs by the covariance of the weights, written down.

    A few rows of the Jacobian at a time, as acquisition functions ask for, are multiplied by it
    faster than through the factors of layers.

    Attributes
    ----------
    posterior
        What it is the covariance of.
    weights
        Cov e.
    moved
        θ - θ* of the posterior's mean, (P,); None where that is the network's own.
    """

    posterior: Posterior
    weights: WeightCovariance
    moved: Tensor | None

    def joint(self, x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """As `Latents.groups`."""
        scale = self.posterior.scale
        outputs, factors = self.posterior.training.linearized.factors(x)
        mean = outputs.unflatten(0, (-1, size))
        jacobian = factors.jacobian().view(len(mean), -1, len(scale))  # (b, size·C, P)
        columns = scale.unsqueeze(-1) * self.weights.columns
        if self.moved is not None:
            columns = torch.cat([columns, self.moved.unsqueeze(-1)], 1)
        product = jacobian @ columns
        if self.moved is not None:
            mean = mean + product[..., -1].view_as(mean)
            product = product[..., :-1]
        covariance = (product * self.weights.signs) @ product.mT
        if self.weights.identity:
            whitened = jacobian * scale
            covariance = covariance + self.weights.identity * (whitened @ whitened.mT)
        return mean, covariance


class LatentPosterior:
    """Mean and covariance of all outputs of a GP, as it is when they are asked for.

    Parameters
    ----------
    gp
        A fitted GP.
    """

    def __init__(self, gp: LinearizedGP) -> None:
        self.gp = gp
        self._dense: WeightLatents | None = None
        self._known: Posterior | None = None

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """X (*batch, q, d) -> mean (*batch, q·C) and covariance (*batch, q·C, q·C)."""
        batch, size = X.shape[:-2], X.shape[-2]
        mean, covariance = self._groups(X.reshape(-1, X.shape[-1]), size)
        side = covariance.shape[-1]
        return mean.reshape(*batch, side), covariance.reshape(*batch, side, side)

    def _groups(self, x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        laplace = self.gp.laplace
        posterior = laplace.posterior()
        if posterior is not self._known:
            weights = posterior.weight_covariance(_MOST_COLUMNS)
            moved = laplace.weight_shift()
            self._dense = None if weights is None else WeightLatents(posterior, weights, moved)
            self._known = posterior
        numbers = len(x) * laplace.training.num_outputs * laplace.training.num_parameters
        if self._dense is not None and numbers <= _MOST_ROWS:
            return self._dense.joint(x, size)
        return Latents(laplace, self.gp._memory()).groups(x, size)
