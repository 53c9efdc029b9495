"""The evidence of an isotropic prior and one noise variance, from one eigendecomposition.

With J Jᵀ = U diag(λ) Uᵀ, prior variance v and noise s, the evidence is a sum over
eigenvalues,

    network mean  -½ [ N·C log 2πs + Σ_i log(1 + v λ_i/s) + |y - f*|²/s + |θ* - μ0|²/v ]
    refit mean    -½ [ N·C log 2πs + Σ_i log(1 + v λ_i/s) + Σ_i u_i²/(s + v λ_i) + rest/s ]

with u = Uᵀ (y - f_lin(μ0)) and `rest` the part of its square outside the range of J. Any number
of values of v and s then costs nothing. Jᵀ J has the same eigenvalues and serves when P < N·C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference.factorize import ROUNDING_LIMIT, rounding_loss
from lingp.inference.function_space import FunctionSpace
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.weight_space import WeightSpace
from lingp.likelihoods import UniformRoot


@dataclass(frozen=True)
class SpectralEvidence:
    """The evidence as a function of prior variance and noise.

    Attributes
    ----------
    eigenvalues
        Of J Jᵀ or Jᵀ J, (k,).
    misfit
        u_i², (k,); zero for mean="network".
    rest
        Square of what no prior variance can explain: |y - f*|² for mean="network".
    weights
        |θ* - μ0|² for mean="network", else zero.
    num_values
        N·C.
    """

    eigenvalues: Tensor
    misfit: Tensor
    rest: Tensor
    weights: Tensor
    num_values: int

    def __call__(self, variance: Tensor, noise: Tensor) -> Tensor:
        scaled = variance * self.eigenvalues
        total = self.num_values * (2 * math.pi * noise).log() + self.rest / noise
        total = total + self.weights / variance + (scaled / noise).log1p().sum()
        return -0.5 * (total + (self.misfit / (noise + scaled)).sum())

    def resolved(self, variance: Tensor, noise: Tensor) -> bool:
        """Whether rounding of the eigenvalues leaves the evidence at these values intact."""
        largest = float(variance / noise * self.eigenvalues.max())
        size, dtype = len(self.eigenvalues), self.eigenvalues.dtype
        return rounding_loss(largest, size, dtype) < ROUNDING_LIMIT


def spectral_evidence(laplace: LinearizedLaplace) -> SpectralEvidence:
    """One eigendecomposition of the unscaled kernel or GGN, in the space the method works in.

    Only for an isotropic prior and a `UniformRoot`.
    """
    training = laplace.training
    with torch.no_grad():
        zero = training.outputs.new_zeros(())
        network = laplace.mean == "network"
        outputs = training.outputs if network else laplace.prior_outputs()
        target = (training.targets - outputs).reshape(-1)
        square = target.square().sum()
        in_weight_space = laplace.method is WeightSpace
        matrix = training.unit_ggn() if in_weight_space else training.unit_gram()
        if network:
            values = torch.linalg.eigvalsh(matrix).clamp(min=0)
            misfit, rest = torch.zeros_like(values), square
            weights = laplace.prior_deviation().square().sum()
        else:
            values, vectors = torch.linalg.eigh(matrix)
            values, weights = values.clamp(min=0), zero
            if in_weight_space:
                u = target.view(training.num_data, -1, 1)
                projected = (vectors.mT @ training.t_matmul(u).squeeze(-1)).square()
                # below rounding, an eigenvalue and its share of the target are both noise
                tiny = len(values) * torch.finfo(values.dtype).eps * values.max()
                misfit = torch.where(values > tiny, projected / values.clamp(min=tiny), zero)
            else:
                misfit = (vectors.mT @ target).square()
            rest = (square - misfit.sum()).clamp(min=0) if in_weight_space else zero
    return SpectralEvidence(values, misfit, rest, weights, len(target))


def has_spectral_evidence(laplace: LinearizedLaplace) -> bool:
    """Whether prior and likelihood have the form that one eigendecomposition serves."""
    exact = laplace.method is WeightSpace or laplace.method is FunctionSpace
    return exact and laplace.prior.isotropic and isinstance(laplace.curvature_root(), UniformRoot)
