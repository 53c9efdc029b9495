"""What every inference method gives: the posterior of the whitened weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, wraps
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from lingp.inference.features import Features, WhitenedJacobian
from lingp.inference.origin import Origin
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot
from lingp.linearization import Factors
from lingp.priors import Prior

P = TypeVar("P", bound="Posterior")


class Posterior(ABC):
    """Posterior of whitened weights e: θ = mean + Σ0^{1/2} e, Cov e = (I + Φᵀ Φ)⁻¹.

    Φ = Rᵀ J Σ0^{1/2} is the whitened Jacobian at the training data. A method that approximates it
    by Rᵀ F with fewer columns (see `lingp.inference.features`) takes coordinates wherever q stands
    for a size below; else q = P. `log_determinant`, `left_out`, `solve` and `precision_solve` are
    differentiable in the prior's variances and in R when the posterior was made with grad mode on;
    covariances are differentiable in factors of new inputs, where those carry a graph, and in
    nothing else; samples are plain values.

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
        self.variances = prior.variances().to(training.outputs)  # (L,) or (P,)
        self.groups = prior.group
        self.scale = training.per_weight(self.variances).sqrt()  # (P,)
        self.features: Features = WhitenedJacobian(training, self.scale)

    takes_all_ranks: ClassVar[bool] = False
    """Whether covariances and samples take all processes where data are spread over some."""

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """log det(I + Φ Φᵀ), 0-d."""

    @abstractmethod
    def solve(self, z: Tensor) -> Tensor:
        """(I + Φᵀ Φ)⁻¹ Φᵀ z, (q,): the minimiser of |z - Φ e|^2 + |e|^2; z (N x K)."""

    @abstractmethod
    def precision_solve(self, b: Tensor) -> Tensor:
        """(I + Φᵀ Φ)⁻¹ b, (q x S) -> (q x S)."""

    def trace_term(self) -> Tensor:
        """tr Λ (J Σ0 Jᵀ - F Fᵀ), 0-d: what features leave out of the prior; 0 for exact methods."""
        return self.variances.new_zeros(())

    def left_out(self) -> Tensor:
        """What `log_determinant` lacks at most, 0-d; 0 for exact methods.

        With half of it subtracted, the evidence is a lower bound.
        """
        return self.variances.new_zeros(())

    def log_determinant_error(self) -> float:
        """Standard error of `log_determinant`; 0 where it is computed directly."""
        return 0.0

    def explaining(self, residual: Tensor) -> Posterior:
        """The posterior to predict with around a mean that leaves these residuals.

        A method whose mean can't follow the data has to be less sure; itself for exact methods.

        Parameters
        ----------
        residual
            r = ∇_f log p(y | f) at the mean, (N x C).
        """
        return self

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

    def training_parts(self) -> tuple[Tensor, Tensor | None]:
        """`training_covariance` in two parts, (N x C x C) each.

        The first is F_n (I + Φᵀ Φ)⁻¹ F_nᵀ. The second is what features leave out of the prior, of
        which the data say nothing; None for exact methods.
        """
        return self.training_covariance(), None

    @cached_property
    def at_data(self) -> tuple[Tensor, Tensor | None]:
        """`training_parts`, kept."""
        return self.training_parts()

    @abstractmethod
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws of whitened weights, (P x num_samples)."""

    @abstractmethod
    def bytes_per_row(self) -> int:
        """Memory that `marginal_covariance` takes for one row of inputs."""

    def whitened_product(self, e: Tensor) -> Tensor:
        """Φ e: (q x S) -> (N x K x S)."""
        return self.root.t_apply(self.features.matmul(e))

    def whitened_t_product(self, w: Tensor) -> Tensor:
        """Φᵀ w: (N x K x S) -> (q x S)."""
        return self.features.t_matmul(self.root.apply(w))

    def _standard_normal(self, *shape: int, generator: torch.Generator | None) -> Tensor:
        outputs = self.training.outputs
        return torch.randn(shape, generator=generator, dtype=outputs.dtype, device=outputs.device)


def differentiable_in_factors(
    covariance: Callable[[P, Factors], Tensor],
) -> Callable[[P, Factors], Tensor]:
    """Run a method with grad mode on only if the factors it is given carry a graph."""

    @wraps(covariance)
    def wrapped(self: P, factors: Factors) -> Tensor:
        carried = any(t.requires_grad for t in factors.tensors())
        with torch.set_grad_enabled(carried and torch.is_grad_enabled()):
            return covariance(self, factors)

    return wrapped


InferenceMethod = Callable[[TrainingSet, Prior, CurvatureRoot], Posterior]
"""What makes a posterior: a `Posterior` class, or an object that is called like one.

An object whose posteriors have features of their own also has `features(training, prior)`, one that
keeps what it knows when the data change `carried_over(training, origin)`.
"""


def features_of(method: InferenceMethod, training: TrainingSet, prior: Prior) -> Features:
    """The features of a method's posteriors, before there is one."""
    own: Callable[[TrainingSet, Prior], Features] | None = getattr(method, "features", None)
    if own is not None:
        return own(training, prior)
    variances = prior.variances().to(training.outputs)
    return WhitenedJacobian(training, training.per_weight(variances).sqrt())


def carried_over(
    method: InferenceMethod, training: TrainingSet, origin: Origin
) -> InferenceMethod | None:
    """The method for changed data with what it keeps; None for one that keeps nothing."""
    carry: Callable[[TrainingSet, Origin], InferenceMethod] | None
    carry = getattr(method, "carried_over", None)
    return None if carry is None else carry(training, origin)
