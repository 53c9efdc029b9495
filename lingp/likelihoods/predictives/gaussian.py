"""The normal predictive of Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.likelihoods.predictives.base import Predictive


@dataclass(frozen=True)
class GaussianPredictive(Predictive):
    """y_n ~ N(mean_n, covariance_n + diag(noise_n)).

    Attributes
    ----------
    location
        Mean of f, (N x C).
    covariance
        Covariance of the outputs of f at each datum, (N x C x C).
    noise
        Noise variance, (N x C) or broadcastable to it.
    """

    location: Tensor
    covariance: Tensor
    noise: Tensor

    @property
    def mean(self) -> Tensor:
        return self.location

    @property
    def epistemic_variance(self) -> Tensor:
        # rounding can take a vanishing variance below zero
        return self.covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0)

    @property
    def aleatoric_variance(self) -> Tensor:
        return self.noise.expand_as(self.location)

    def _scale(self) -> Tensor:
        """Cholesky factor of covariance + diag(noise), (N x C x C)."""
        total = self.covariance + torch.diag_embed(self.noise.expand_as(self.location))
        return torch.linalg.cholesky(total)

    def log_prob(self, y: Tensor) -> Tensor:
        scale = self._scale()
        white = torch.linalg.solve_triangular(
            scale, (y - self.location).unsqueeze(-1), upper=False
        ).squeeze(-1)
        log_det = scale.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # of the root: half of it
        return -0.5 * (white.square() + math.log(2 * math.pi)).sum(-1) - log_det

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        quantile = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)).item()
        half = quantile * self.variance.sqrt()
        return self.location - half, self.location + half

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(
            (num_samples, *self.location.shape),
            generator=generator,
            dtype=self.location.dtype,
            device=self.location.device,
        )
        return self.location + (self._scale() @ noise.unsqueeze(-1)).squeeze(-1)
