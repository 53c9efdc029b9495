"""The latent outputs of a linearised network at batches of points, with gradients in the points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference import Posterior
from lingp.inference.function_space import FunctionSpace
from lingp.inference.sparse import SparsePosterior
from lingp.inference.weight_space import WeightSpace
from lingp.models import LinearizedGP
from lingp.models.latents import Latents

_MOST_COLUMNS = 1 << 23  # numbers in V
_MOST_ROWS = 1 << 18  # numbers in the Jacobian at the points, past which the factors are faster


@dataclass(frozen=True)
class WhitenedCovariance:
    """Cov e = a I + V D Vᵀ of whitened weights, V (P x r) and D diagonal.

        function space    I - U Uᵀ,                      U = Φᵀ L⁻ᵀ,  L Lᵀ = I + Φ Φᵀ
        weight space      W Wᵀ,                          W = L⁻ᵀ,     L Lᵀ = I + Φᵀ Φ
        sparse            s (I - Q Qᵀ) + Q A⁻¹ Qᵀ

    A few rows of the Jacobian at a time, as acquisition functions ask for, are multiplied by V
    faster than through the factors of layers.

    Attributes
    ----------
    posterior
        What it is the covariance of.
    identity
        a.
    columns
        V.
    signs
        D, (r,).
    moved
        θ - θ* of the posterior's mean, (P,); None where that is the network's own.
    """

    posterior: Posterior
    identity: float
    columns: Tensor
    signs: Tensor
    moved: Tensor | None

    @staticmethod
    @torch.no_grad()
    def of(posterior: Posterior, moved: Tensor | None) -> WhitenedCovariance | None:
        """None for a posterior of another kind, and where V is large."""
        size = len(posterior.scale)
        if isinstance(posterior, FunctionSpace) and not posterior.factorization.from_qr:
            rank = len(posterior.factorization.factor)
        elif isinstance(posterior, WeightSpace):
            rank = size
        elif isinstance(posterior, SparsePosterior):
            rank = 2 * posterior.features.num_coordinates
        else:
            return None
        if size * rank > _MOST_COLUMNS:
            return None
        factor = posterior.factorization.factor
        inverse = torch.linalg.solve_triangular(factor.mT, _eye_like(factor), upper=True)  # L⁻ᵀ
        if isinstance(posterior, FunctionSpace):
            rows = (posterior.training.num_data, posterior.root.rank)
            columns = posterior.whitened_t_product(inverse.unflatten(0, rows))
            return WhitenedCovariance(posterior, 1.0, columns, -columns.new_ones(rank), moved)
        if isinstance(posterior, WeightSpace):
            return WhitenedCovariance(posterior, 0.0, inverse, inverse.new_ones(rank), moved)
        basis = posterior.features.whitened(_eye_like(factor))  # Q
        s = posterior.complement_variance
        columns = torch.cat([basis, basis @ inverse], 1)
        signs = torch.cat([-s.expand(len(factor)), s.new_ones(len(factor))])
        return WhitenedCovariance(posterior, float(s), columns, signs, moved)

    def joint(self, x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """As `Latents.groups`."""
        scale = self.posterior.scale
        outputs, factors = self.posterior.training.linearized.factors(x)
        mean = outputs.unflatten(0, (-1, size))
        jacobian = factors.jacobian().view(len(mean), -1, len(scale))  # (b, size·C, P)
        columns = scale.unsqueeze(-1) * self.columns
        if self.moved is not None:
            columns = torch.cat([columns, self.moved.unsqueeze(-1)], 1)
        product = jacobian @ columns
        if self.moved is not None:
            mean = mean + product[..., -1].view_as(mean)
            product = product[..., :-1]
        covariance = (product * self.signs) @ product.mT
        if self.identity:
            whitened = jacobian * scale
            covariance = covariance + self.identity * (whitened @ whitened.mT)
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
        self._dense: WhitenedCovariance | None = None
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
            self._dense = WhitenedCovariance.of(posterior, laplace.weight_shift())
            self._known = posterior
        numbers = len(x) * laplace.training.num_outputs * laplace.training.num_parameters
        if self._dense is not None and numbers <= _MOST_ROWS:
            return self._dense.joint(x, size)
        return Latents(laplace, self.gp._memory()).groups(x, size)


def _eye_like(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
