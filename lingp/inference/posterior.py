"""What every inference method gives: the posterior of the whitened weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot
from lingp.linearization import Factors
from lingp.priors import Prior


class Posterior(ABC):
    """Posterior of whitened weights e: θ = mean + Σ0^{1/2} e, Cov e = (I + Φᵀ Φ)⁻¹.

    Φ = Rᵀ J Σ0^{1/2} is the whitened Jacobian at the training data. `log_determinant`, `solve` and
    `precision_solve` are differentiable in the prior's variances and in R when the posterior was
    made with grad mode on; covariances and samples are plain values.

    Parameters
    ----------
    training
        The training data.
    prior
        A bound prior.
    root
        R, the curvature root at the training data.
    """

    def __init__(self, training: TrainingSet, prior: Prior, root: CurvatureRoot) -> None:
        self.training = training
        self.root = root
        self.isotropic = prior.isotropic
        self.variances = prior.variances().to(training.outputs)  # (L,)
        self.scale = training.per_weight(self.variances).sqrt()  # (P,)

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """log det(I + Φ Φᵀ), 0-d."""

    @abstractmethod
    def solve(self, z: Tensor) -> Tensor:
        """(I + Φᵀ Φ)⁻¹ Φᵀ z, (P,): the minimiser of |z - Φ e|^2 + |e|^2; z (N x K)."""

    @abstractmethod
    def precision_solve(self, b: Tensor) -> Tensor:
        """(I + Φᵀ Φ)⁻¹ b, (P x S) -> (P x S)."""

    @abstractmethod
    def covariance(self, factors: Factors) -> Tensor:
        """Φ* (I + Φᵀ Φ)⁻¹ Φ*ᵀ with Φ* = J* Σ0^{1/2}, (n·C x n·C)."""

    @abstractmethod
    def marginal_covariance(self, factors: Factors) -> Tensor:
        """The diagonal blocks of `covariance`, (n x C x C), without the rest of it."""

    @torch.no_grad()
    def training_covariance(self) -> Tensor:
        """`marginal_covariance` at the training data, (N x C x C)."""
        size = max(1, self.training.chunk_bytes // self.bytes_per_row())
        blocks = [
            self.marginal_covariance(factors.rows(slice(start, start + size)))
            for _, factors in self.training.chunks()
            for start in range(0, factors.num_data, size)
        ]
        return torch.cat(blocks)

    @abstractmethod
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws of e, (P x num_samples)."""

    @abstractmethod
    def bytes_per_row(self) -> int:
        """Memory that `marginal_covariance` takes for one row of inputs."""

    def whitened_product(self, e: Tensor) -> Tensor:
        """Φ e: (P x S) -> (N x K x S)."""
        return self.root.t_apply(self.training.matmul(self.scale.unsqueeze(-1) * e))

    def whitened_t_product(self, w: Tensor) -> Tensor:
        """Φᵀ w: (N x K x S) -> (P x S)."""
        return self.scale.unsqueeze(-1) * self.training.t_matmul(self.root.apply(w))

    def _standard_normal(self, *shape: int, generator: torch.Generator | None) -> Tensor:
        outputs = self.training.outputs
        return torch.randn(shape, generator=generator, dtype=outputs.dtype, device=outputs.device)


InferenceMethod = Callable[[TrainingSet, Prior, CurvatureRoot], Posterior]
"""What makes a posterior: a `Posterior` class, or an object that is called like one."""
