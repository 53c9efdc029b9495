"""The features of a sparse posterior: F = Ψ, with as many coordinates as inducing points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference.features import Features
from lingp.inference.prior_values import PriorValues
from lingp.inference.sparse.basis import Basis
from lingp.linearization import Factors


@dataclass(frozen=True)
class Projection(Features):
    """F = a Ψ; the weights with coordinates u are θ = μ0 + Σ0^{1/2} Q u.

    An isotropic prior multiplies Ψ by its standard deviation a and leaves Q as it is, so that Ψ is
    made once, for unit variances.

    Attributes
    ----------
    basis
        Gives Ψ.
    amplitude
        a, 0-d; one for a prior that isn't isotropic.
    """

    basis: Basis
    amplitude: Tensor

    @property
    def num_coordinates(self) -> int:
        return self.basis.points.num_points

    def at(self, factors: Factors) -> Tensor:
        """F at any inputs, (n x C x m)."""
        return self.amplitude * self.basis.block(factors)

    def matmul(self, e: Tensor) -> Tensor:
        amplitude = self.basis.training.shards.enter(self.amplitude)
        return amplitude * self.basis.matmul(e)

    def t_matmul(self, u: Tensor) -> Tensor:
        return self.amplitude * self.basis.t_matmul(u)

    def weights(self, e: Tensor) -> Tensor:
        return self.amplitude * self._scale().unsqueeze(-1) * self.whitened(e)

    def coordinates(self, deviation: Tensor) -> Tensor:
        whitened = (deviation / self._scale()).unsqueeze(-1)
        return self.t_whitened(whitened).squeeze(-1) / self.amplitude

    def whitened(self, e: Tensor) -> Tensor:
        """Q u: coordinates (m x S) as whitened weights (P x S)."""
        inner = torch.linalg.solve_triangular(self.basis.factor.mT, e, upper=True)
        return self.basis.points.apply_t(inner, self._scale())

    def t_whitened(self, e: Tensor) -> Tensor:
        """Qᵀ e: whitened weights (P x S) to coordinates (m x S)."""
        rows = self.basis.points.apply(e, self._scale())
        return torch.linalg.solve_triangular(self.basis.factor, rows, upper=False)

    def detach(self) -> Projection:
        return Projection(self.basis.detach(), self.amplitude.detach())

    def _scale(self) -> Tensor:
        """The square root of the variances that Ψ is made for, (P,)."""
        return self.basis.training.per_weight(self.basis.variances).sqrt()


def relative_variances(prior: PriorValues, like: Tensor) -> tuple[Tensor, Tensor]:
    """The variances (L,) to make Ψ for, and its amplitude a, 0-d, both with their graphs."""
    variances = prior.variances().to(like)
    if prior.isotropic:
        return torch.ones_like(variances.detach()), variances[0].sqrt()
    return variances, like.new_ones(())
