"""What a predictive distribution of targets gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import Self

from lingp.likelihoods.predictives.quantiles import (
    count_quantile,
    quantiles_of_draws,
    real_quantile,
)

_NUM_DRAWS = 10_000


class Predictive(ABC):
    """p(y_n) for each of N data; variance = epistemic (of f) + aleatoric (of y given f).

    Moments have M columns: those of the T targets, or of the K indicators of a class label.
    """

    @property
    @abstractmethod
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """E y, Var E[y | f] and E Var[y | f], (N x M)."""

    @property
    def mean(self) -> Tensor:
        """E y, (N x M)."""
        return self.moments[0]

    @property
    def epistemic_variance(self) -> Tensor:
        """Var E[y | f], (N x M)."""
        return self.moments[1]

    @property
    def aleatoric_variance(self) -> Tensor:
        """E Var[y | f], (N x M)."""
        return self.moments[2]

    @property
    def variance(self) -> Tensor:
        """Var y, (N x M)."""
        return self.epistemic_variance + self.aleatoric_variance

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """log p(y_n), jointly over the targets of a datum, (N,); y from `check_targets`."""

    def beside(self, y: Tensor) -> tuple[Self, Tensor]:
        """The predictive at the known quantities of checked targets, and their values (N x T)."""
        return self, y

    @property
    def cdf_support(self) -> Literal["counts", "reals"] | None:
        """What `cdf` is a distribution function over; None: there is none."""
        return None

    def cdf(self, y: Tensor) -> Tensor:
        """P(y_nt <= y), (N x T), to about 1e-7; nothing is differentiated."""
        raise TypeError(f"cdf: {type(self).__name__} has no distribution function")

    def _around(self) -> tuple[Tensor, Tensor]:
        """Where targets are and how far they spread, roughly, (N x T) each."""
        return self.mean, self.variance.sqrt()

    def quantiles(self, *probabilities: float) -> tuple[Tensor, ...]:
        """The y with P(y_nt <= y) = p for each p, (N x T).

        By `cdf`; without it from 10,000 draws with a fixed seed, below which the probability has a
        standard error of at most 0.5 %.
        """
        if self.cdf_support is None:
            generator = torch.Generator(self.mean.device).manual_seed(0)
            return quantiles_of_draws(self.sample(_NUM_DRAWS, generator), probabilities)
        centre, scale = self._around()
        if self.cdf_support == "counts":
            return tuple(count_quantile(self.cdf, p, centre) for p in probabilities)
        return tuple(real_quantile(self.cdf, p, centre, scale) for p in probabilities)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Central interval that holds each y with probability `level`: lower, upper (N x T)."""
        lower, upper = self.quantiles((1 - level) / 2, (1 + level) / 2)
        return lower, upper

    @property
    def median(self) -> Tensor:
        """The median of each y, (N x T)."""
        return self.quantiles(0.5)[0]

    @abstractmethod
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws of y, independent over data, (num_samples x N x T)."""

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (N x K), where targets are labels."""
        raise AttributeError(
            f"probs: {type(self).__name__} is not over class labels; use mean and variance"
        )
