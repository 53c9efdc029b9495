"""The latent outputs of a linearised network at batches of points, with gradients in the points."""

from __future__ import annotations

from torch import Tensor

from lingp.inference import Posterior
from lingp.inference.weight_covariance import WeightCovariance
from lingp.models import LinearizedGP
from lingp.models.latents import Latents

_MOST_COLUMNS = 1 << 23  # numbers in V
_MOST_ROWS = 1 << 18  # numbers in the Jacobian at the points, past which the factors are faster


class LatentPosterior:
    """Mean and covariance of all outputs of a GP, as it is when they are asked for.

    A few rows of the Jacobian at a time, as acquisition functions ask for, are multiplied by the
    covariance of the weights, written down, faster than through the factors of layers.

    Parameters
    ----------
    gp
        A fitted GP.
    """

    def __init__(self, gp: LinearizedGP) -> None:
        self.gp = gp
        self._weights: WeightCovariance | None = None
        self._shift: Tensor | None = None  # θ - θ* of the posterior's mean
        self._known: Posterior | None = None

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """X (*batch, q, d) -> mean (*batch, q·C) and covariance (*batch, q·C, q·C)."""
        laplace, x = self.gp.laplace, X.reshape(-1, X.shape[-1])
        posterior = laplace.posterior()
        if posterior is not self._known:
            self._weights = posterior.weight_covariance(_MOST_COLUMNS)
            self._shift = laplace.weight_shift()
            self._known = posterior
        training = laplace.training
        if self._weights is None or (
            len(x) * training.num_outputs * training.num_parameters > _MOST_ROWS
        ):
            mean, covariance = Latents(laplace, self.gp._memory()).groups(x, X.shape[-2])
        else:
            mean, factors = training.linearized.factors(x)
            rows = factors.jacobian().view(-1, X.shape[-2] * mean.shape[1], len(posterior.scale))
            mean = mean.reshape(rows.shape[:2])
            if self._shift is not None:
                mean = mean + rows @ self._shift
            covariance = self._weights.between(rows * posterior.scale)
        batch, side = X.shape[:-2], covariance.shape[-1]
        return mean.reshape(*batch, side), covariance.reshape(*batch, side, side)
