"""Every common scale of prior variances and curvature from one eigendecomposition.

With Φ the whitened Jacobian at some prior variances Σ0 and curvature root R, and
Φᵀ Φ = V diag(λ) Vᵀ, the variances s Σ0 and the curvature t Λ give

    log det     Σ_i log(1 + st λ_i)
    Cov f*      s [ S* + Q* diag(1 / (1 + st λ)) Q*ᵀ ],    Q* = J* Σ0^{1/2} V,
                                                           S* = J* Σ0 J*ᵀ - Q* Q*ᵀ
    mean f*     f_lin(μ0) + st Q* (b / (1 + st λ)),        b = Vᵀ Φᵀ z       (quadratic likelihoods)

S* is the prior variance no datum speaks of; in weight space V is square and S* = 0. In function
space Φ Φᵀ = U diag(λ) Uᵀ and V = Φᵀ U diag(λ^{-1/2}) is never formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference.exact import Exact, as_method
from lingp.inference.factorize import ROUNDING_LIMIT, rounding_loss
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_space import WeightSpace, weighted_ggn
from lingp.likelihoods import CurvatureRoot, Gaussian
from lingp.linalg.psd import nearest_psd
from lingp.linearization import Factors
from lingp.operators import diagonal_blocks, gram


@dataclass(frozen=True)
class ScaledRows:
    """Rows of inputs in the eigenbasis: their posterior at every scale.

    Attributes
    ----------
    basis
        Q*, (n x C x k).
    unseen
        S*, (n x C x C); None where it is zero.
    """

    basis: Tensor
    unseen: Tensor | None

    @staticmethod
    def cat(parts: Sequence[ScaledRows]) -> ScaledRows:
        """Stack the rows of several batches."""
        unseen = [part.unseen for part in parts if part.unseen is not None]
        basis = torch.cat([part.basis for part in parts])
        return ScaledRows(basis, torch.cat(unseen) if unseen else None)

    def covariance(self, kept: Tensor, s: Tensor | float) -> Tensor:
        """Marginal posterior covariance of each row's outputs, (n x C x C).

        Parameters
        ----------
        kept
            1 / (1 + st λ), (k,).
        s
            Scale of the prior's variances, 0-d.
        """
        seen = (self.basis * kept) @ self.basis.mT
        return s * (seen if self.unseen is None else seen + self.unseen)

    def moved(self, kept: Tensor, coordinates: Tensor, st: Tensor | float) -> Tensor:
        """How far the posterior mean of the outputs is from f_lin(μ0), (n x C)."""
        return st * (self.basis @ (kept * coordinates))


@dataclass(frozen=True)
class ScaledSpectrum:
    """The eigendecomposition of Φ Φᵀ or Φᵀ Φ.

    Attributes
    ----------
    training
        The training data.
    variances
        Prior variance of each parameter tensor at scale 1, (L,).
    root
        R at scale 1.
    eigenvalues
        λ, (k,): all P of them in weight space, all N·K in function space.
    vectors
        V (P x P) in weight space, U (N·K x N·K) in function space.
    in_weight_space
        Which of the two.
    """

    training: TrainingSet
    variances: Tensor
    root: CurvatureRoot
    eigenvalues: Tensor
    vectors: Tensor
    in_weight_space: bool

    @classmethod
    @torch.no_grad()
    def of(cls, laplace: LinearizedLaplace) -> ScaledSpectrum:
        """At the current hyperparameters, which are scale 1, in the space the method works in."""
        variances = laplace.prior.variances().to(laplace.training.outputs)
        root = laplace.curvature_root()
        values, vectors = torch.linalg.eigh(squared_jacobian(laplace))
        in_weight_space = as_method(laplace.method) == Exact(WeightSpace)
        values = values.clamp(min=0)
        return cls(laplace.training, variances, root, values, vectors, in_weight_space)

    def kept(self, st: Tensor | float) -> Tensor:
        """1 / (1 + st λ): how much of each direction's prior variance is left, (k,)."""
        return 1 / (1 + st * self.eigenvalues)

    def log_determinant(self, st: Tensor) -> Tensor:
        """log det(I + Φ Φᵀ), 0-d."""
        return (st * self.eigenvalues).log1p().sum()

    def resolved(self, st: float, tolerance: float = 0.0) -> bool:
        """Whether rounding of the eigenvalues leaves results at this scale intact."""
        return spectrum_resolved(self.eigenvalues, st, tolerance)

    @torch.no_grad()
    def rows(self, factors: Factors) -> ScaledRows:
        """Other rows of inputs in the eigenbasis."""
        shape = (factors.num_data, factors.num_outputs)
        if self.in_weight_space:
            scale = self.training.per_weight(self.variances).sqrt()
            rows = factors.jacobian().flatten(0, 1) * scale
            return ScaledRows((rows @ self.vectors).unflatten(0, shape), None)
        training = self.training
        cross = gram(training.factors(), factors, variances=self.variances)  # (N·C, n·C)
        cross = cross.view(training.num_data, training.num_outputs, -1)
        basis = self.root.t_apply(cross).flatten(0, 1).mT @ self.vectors  # (n·C, N·K)
        basis = (basis * self._inverse_root()).unflatten(0, shape)
        unseen = diagonal_blocks(factors, self.variances) - basis @ basis.mT
        return ScaledRows(basis, nearest_psd(unseen))

    @torch.no_grad()
    def coordinates(self, z: Tensor) -> Tensor:
        """b = Vᵀ Φᵀ z: (N x K) -> (k,)."""
        if self.in_weight_space:
            scale = self.training.per_weight(self.variances).sqrt()
            gradient = self.training.t_matmul(self.root.apply(z.unsqueeze(-1))).squeeze(-1)
            return self.vectors.mT @ (scale * gradient)
        return self.eigenvalues.sqrt() * (self.vectors.mT @ z.reshape(-1))

    def _inverse_root(self) -> Tensor:
        """λ^{-1/2}, zero where rounding has eaten the eigenvalue."""
        tiny = len(self.eigenvalues) * torch.finfo(self.eigenvalues.dtype).eps
        seen = self.eigenvalues > tiny * self.eigenvalues.max()
        return torch.where(seen, self.eigenvalues, torch.inf).rsqrt()


@torch.no_grad()
def squared_jacobian(laplace: LinearizedLaplace) -> Tensor:
    """Φᵀ Φ (P x P) or Φ Φᵀ (N·K x N·K), in the space the method works in."""
    training, root = laplace.training, laplace.curvature_root()
    variances = laplace.prior.variances().to(training.outputs)
    if as_method(laplace.method) == Exact(WeightSpace):
        scale = training.per_weight(variances).sqrt()
        return scale.unsqueeze(-1) * weighted_ggn(training, root) * scale
    if laplace.prior.isotropic:
        return root.congruence(variances[0] * training.unit_gram())
    return root.congruence(gram(training.factors(), variances=variances))


def works_in_a_space(laplace: LinearizedLaplace) -> bool:
    """Whether the inference method is exact, so that its matrix has an eigendecomposition."""
    return isinstance(as_method(laplace.method), Exact)


def spectrum_resolved(eigenvalues: Tensor, st: float, tolerance: float = 0.0) -> bool:
    """Whether rounding of the eigenvalues of Φ Φᵀ leaves what is computed from them intact.

    n·eps·λ_max also bounds the error of log det(I + Φ Φᵀ): one below `tolerance` nats will do.
    """
    largest = st * float(eigenvalues.max())
    loss = rounding_loss(largest, len(eigenvalues), eigenvalues.dtype)
    return loss < max(ROUNDING_LIMIT, tolerance)


def common_noise(laplace: LinearizedLaplace) -> Tensor | None:
    """The noise variance that divides all curvature, 0-d with a graph, where there is one."""
    likelihood = laplace.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.raw_noise.dim() == 0:
        return likelihood.noise
    return None
