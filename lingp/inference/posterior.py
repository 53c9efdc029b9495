"""What inference methods give: the posterior of the whitened weights, or its determinant alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from typing_extensions import Self

from lingp.inference.factorize import Factorization
from lingp.inference.features import Features, WhitenedJacobian
from lingp.inference.prior_values import PriorValues
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_covariance import WeightCovariance
from lingp.likelihoods import CurvatureRoot
from lingp.linearization import Factors
from lingp.runtime.plain import own

P = TypeVar("P", bound="Posterior")


class OccamFactor(ABC):
    """log det(I + Φ Φᵀ) at the training data, with its derivatives: what the evidence takes.

    MacKay (1992), "Bayesian interpolation", section 2.3. Φ = Rᵀ J Σ0^{1/2} is the whitened Jacobian
    at the training data. A method that approximates it by Rᵀ F with fewer columns (see
    `lingp.inference.features`) takes coordinates wherever q stands for a size; else q = P. What is
    said of the determinant is differentiable in the prior's variances and in R when the object was
    made with grad mode on.

    Parameters
    ----------
    training
        The training data.
    prior
        A bound prior.
    root
        R, the curvature root at the training data.
    """

    def __init__(self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot) -> None:
        self.training = training
        self.root = root
        self.isotropic = prior.isotropic
        self.variances = prior.variances().to(training.outputs)  # (L,) or (P,)
        self.groups = prior.group
        self.scale = training.per_weight(self.variances).sqrt()  # (P,)
        self.features: Features = WhitenedJacobian(training, self.scale)

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """log det(I + Φ Φᵀ), 0-d."""

    def trace_term(self) -> Tensor:
        """tr Λ (J Σ0 Jᵀ - F Fᵀ), 0-d: what features leave out of the prior; 0 for exact methods."""
        return self.variances.new_zeros(())

    def bound_gap(self) -> Tensor:
        """What `log_determinant` lacks at most, 0-d; 0 for exact methods.

        With half of it subtracted, the evidence is a lower bound.
        """
        return self.variances.new_zeros(())

    def log_determinant_error(self) -> float:
        """Standard error of `log_determinant`; 0 where it is computed directly."""
        return 0.0

    @abstractmethod
    def effective_parameters(self) -> Tensor:
        """γ, how many parameters the data determine (MacKay, 1992), 0-d.

        The slope of `log_determinant` + `bound_gap` in the logarithm of all prior variances at
        once; for exact methods tr (I + Φᵀ Φ)⁻¹ Φᵀ Φ.
        """

    @abstractmethod
    def to_predict_with(self) -> Posterior:
        """The posterior that has this determinant.

        Raises
        ------
        ValueError
            If the method has none.
        """


class Posterior(OccamFactor):
    """Posterior of whitened weights e: θ = mean + Σ0^{1/2} e, Cov e = (I + Φᵀ Φ)⁻¹.

    `solve` and `precision_solve` are differentiable like the determinant; covariances are
    differentiable in factors of new inputs, where those carry a graph, and in nothing else; samples
    are plain values.
    """

    takes_all_ranks: ClassVar[bool] = False
    """Whether covariances and samples take all processes where data are spread over some."""

    def to_predict_with(self) -> Posterior:
        return self

    @abstractmethod
    def solve(self, z: Tensor) -> Tensor:
        """(I + Φᵀ Φ)⁻¹ Φᵀ z, (q,): the minimiser of |z - Φ e|^2 + |e|^2; z (N x K)."""

    @abstractmethod
    def precision_solve(self, b: Tensor) -> Tensor:
        """(I + Φᵀ Φ)⁻¹ b, (q x S) -> (q x S)."""

    def widened_by(self, residual: Tensor) -> Posterior:
        """The posterior to predict with around a mean that leaves these residuals.

        A method whose mean can't follow the data has to be less sure; itself for exact methods.

        Parameters
        ----------
        residual
            r = ∇_f log p(y | f) at the mean, (N x C).
        """
        return self

    @torch.no_grad()
    def effective_parameters(self) -> Tensor:
        size = self.features.num_coordinates
        identity = torch.eye(size, dtype=self.scale.dtype, device=self.scale.device)
        return size - self.precision_solve(identity).diagonal().sum()

    def eigenvalues(self) -> Tensor:
        """Of Φ Φᵀ that may be above zero, largest first.

        Raises
        ------
        TypeError
            For a method that has no matrix to take them of.
        """
        raise TypeError(
            f"{type(self).__name__} has no kernel matrix; fit with exact or sparse inference, "
            'e.g. inference="function_space"'
        )

    def weight_covariance(self, max_numbers: int) -> WeightCovariance | None:
        """Cov e written down, of at most so many numbers; None where it has more, or isn't made."""
        return None

    def state(self) -> dict[str, Any]:
        """What a file keeps besides hyperparameters, for the method's `restored`.

        Raises
        ------
        TypeError
            For a posterior of the user's own.
        """
        raise TypeError(f"inference: a posterior of class {type(self).__name__} can't be saved")

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


class FactorizedPosterior(Posterior):
    """A posterior that has the Cholesky factor of one matrix I + ...

    Attributes
    ----------
    factorization
        Of I + Φᵀ Φ, of I + Φ Φᵀ, or of what stands for them.
    """

    factorization: Factorization

    def log_determinant(self) -> Tensor:
        return self.factorization.log_determinant()

    @torch.no_grad()
    def effective_parameters(self) -> Tensor:
        return len(self.factorization.factor) - self.factorization.inverse_trace()

    @torch.no_grad()
    def eigenvalues(self) -> Tensor:
        # singular values of the triangle: eigenvalues keep their digits, relative to 1
        singular = torch.linalg.svdvals(self.factorization.factor)
        return (singular.square() - 1).clamp(min=0)

    def state(self) -> dict[str, Any]:
        return {"factor": own(self.factorization.factor), "from_qr": self.factorization.from_qr}

    @classmethod
    def with_factor(
        cls, state: dict[str, Any], training: TrainingSet, prior: PriorValues, root: CurvatureRoot
    ) -> Self:
        """A posterior with the factor of this `state`; nothing is factorised."""
        posterior = cls.__new__(cls)
        FactorizedPosterior.__init__(posterior, training, prior, root)
        posterior.factorization = Factorization(state["factor"], None, state["from_qr"])
        return posterior


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
