"""What a predictive distribution of targets gives."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Predictive(ABC):
    """p(y_n) for each of N data; variance = epistemic (of f) + aleatoric (of y given f).

    Moments have M columns: those of the T targets, or of the K indicators of a class label.
    """

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E y, (N x M)."""

    @property
    @abstractmethod
    def epistemic_variance(self) -> Tensor:
        """Var E[y | f], (N x M)."""

    @property
    @abstractmethod
    def aleatoric_variance(self) -> Tensor:
        """E Var[y | f], (N x M)."""

    @property
    def variance(self) -> Tensor:
        """Var y, (N x M)."""
        return self.epistemic_variance + self.aleatoric_variance

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """log p(y_n), jointly over the targets of a datum, (N,); y from `check_targets`."""

    @abstractmethod
    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Central interval that holds each y with probability `level`: lower, upper (N x T)."""

    @property
    def median(self) -> Tensor:
        """Of each y, (N x T): both ends of the interval of level 0."""
        return self.interval(0.0)[0]

    @abstractmethod
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws of y, independent over data, (num_samples x N x T)."""

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (N x K), where targets are labels."""
        raise AttributeError(
            f"probs: {type(self).__name__} is not over class labels; use mean and variance"
        )


class PredictiveOfMoments(Predictive):
    """A predictive that computes its three moments together, once."""

    @property
    @abstractmethod
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """E y, Var E[y | f] and E Var[y | f], (N x M)."""

    @property
    def mean(self) -> Tensor:
        return self._moments[0]

    @property
    def epistemic_variance(self) -> Tensor:
        return self._moments[1]

    @property
    def aleatoric_variance(self) -> Tensor:
        return self._moments[2]
