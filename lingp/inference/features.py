"""The features that a posterior is linear in: f_lin = f_lin(μ0) + F e, with e ~ N(0, I).

Exact methods have F = J Σ0^{1/2}, and e are all whitened weights. A method that keeps only a
subspace of the weights, spanned by the columns of Q, has F = J Σ0^{1/2} Q and fewer coordinates.
Everything else (posterior mean, evidence, their derivatives) is the same for both, written on
Φ = Rᵀ F.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from lingp.inference.training_set import TrainingSet


class Features(ABC):
    """F at the training data, (N·C x q); differentiable where grad mode is on."""

    @property
    @abstractmethod
    def num_coordinates(self) -> int:
        """q."""

    @abstractmethod
    def matmul(self, e: Tensor) -> Tensor:
        """F e: (q x S) -> (N x C x S)."""

    @abstractmethod
    def t_matmul(self, u: Tensor) -> Tensor:
        """Fᵀ u: (N x C x S) -> (q x S)."""

    @abstractmethod
    def weights(self, e: Tensor) -> Tensor:
        """The weights with coordinates e, as θ - μ0: (q x S) -> (P x S)."""

    @abstractmethod
    def coordinates(self, deviation: Tensor) -> Tensor:
        """Coordinates of the nearest weights to θ - μ0 in the prior's metric: (P,) -> (q,)."""

    @abstractmethod
    def detach(self) -> Features:
        """The same features without a graph."""


@dataclass(frozen=True)
class WhitenedJacobian(Features):
    """F = J Σ0^{1/2}; coordinates are whitened weights.

    Attributes
    ----------
    training
        Gives J.
    scale
        Σ0^{1/2}, (P,).
    """

    training: TrainingSet
    scale: Tensor

    @property
    def num_coordinates(self) -> int:
        return len(self.scale)

    def matmul(self, e: Tensor) -> Tensor:
        return self.training.matmul(self.scale.unsqueeze(-1) * e)

    def t_matmul(self, u: Tensor) -> Tensor:
        return self.scale.unsqueeze(-1) * self.training.t_matmul(u)

    def weights(self, e: Tensor) -> Tensor:
        return self.scale.unsqueeze(-1) * e

    def coordinates(self, deviation: Tensor) -> Tensor:
        return deviation / self.scale

    def detach(self) -> WhitenedJacobian:
        return WhitenedJacobian(self.training, self.scale.detach())
