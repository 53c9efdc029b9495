"""Sparse inference: all of the posterior in the span of inducing points, one number for the rest.

With features Ψ(x) = K(x, Z) L⁻ᵀ of inducing points Z (see `lingp.inference.sparse.basis`), one pass
over the data gives

    A = I + Ψᵀ Λ Ψ  (m x m),     t = tr Λ (K - Ψ Ψᵀ)
    Cov f* = s [K** - Ψ* Ψ*ᵀ] + Ψ* A⁻¹ Ψ*ᵀ                         both terms PSD
    log q  = Σ_n log p(y_n | f_n) - ½ |u|² - ½ log det A - ½ l

The first two make a normal q of the whitened weights with free mean and covariance in the span of
Q, and variance s in the r = P - m directions outside of it. The bound on the evidence is largest at

    s = 1 / (1 + t/r),     l = r log(1 + t/r)           (complement="fitted")
    s = 1,                 l = t                        (complement="prior")

since -½ log det(I + Φᵀ Φ) >= -½ log det A - ½ r log(1 + t/r), by Fischer's inequality for the two
blocks and that of the means for the eigenvalues of the second. For Gaussian noise and a refitted
mean, s = 1 is Titsias (2009, "Variational learning of inducing variables in sparse Gaussian
processes", equations 6 and 9). At Z = all data t is zero and everything is exact. Memory is that
of a few m x m matrices and one batch of rows, whatever N is.

A refitted mean stays in the span, whatever the data say outside of it, and the residuals r show it.
There, s for predictions is at least what their scatter says. With D_n and V_n the blocks at datum n
of K - Ψ Ψᵀ and of Ψ A⁻¹ Ψᵀ,

    E r_n r_nᵀ = Λ_n - Λ_n V_n Λ_n + s Λ_n D_n Λ_n
    s = Σ_n [ r_nᵀ D_n r_n - tr D_n Λ_n + tr D_n Λ_n V_n Λ_n ] / Σ_n tr D_n Λ_n D_n Λ_n

the score's estimate of a variance component, up to how leverage and s meet.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from lingp.inference.factorize import factorize
from lingp.inference.posterior import FactorizedPosterior, differentiable_in_factors
from lingp.inference.prior_values import PriorValues
from lingp.inference.sparse.projection import Projection
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_covariance import WeightCovariance
from lingp.likelihoods import CurvatureRoot
from lingp.linearization import Factors
from lingp.operators import diagonal_blocks, gram
from lingp.runtime.plain import own

Complement = Literal["fitted", "prior"]


class SparsePosterior(FactorizedPosterior):
    """Cov e = s (I - Q Qᵀ) + Q A⁻¹ Qᵀ, with L Lᵀ = A = I + Ψᵀ Λ Ψ.

        log det     2 Σ_i log L_ii
        Cov f*      s [K** - Ψ* Ψ*ᵀ] + Vᵀ V,  V = L⁻¹ Ψ*ᵀ
        sample      √s (e - Q Qᵀ e) + Q L⁻ᵀ e',  e ~ N(0, I_P), e' ~ N(0, I_m)

    Parameters
    ----------
    training, prior, root
        The model, as for every posterior.
    features
        Ψ at the training data.
    complement
        The rule for s, see above.
    """

    features: Projection

    def __init__(
        self,
        training: TrainingSet,
        prior: PriorValues,
        root: CurvatureRoot,
        features: Projection,
        complement: Complement = "fitted",
    ) -> None:
        super().__init__(training, prior, root)
        self.complement = complement
        self.features = features
        basis, amplitude = features.basis, features.amplitude
        self._gram = amplitude.square() * basis.gram(root)
        squared = self._gram.clone()
        squared.diagonal().add_(1)
        self.factorization = factorize(
            squared,
            self._whitened_rows,
            *map(training.shards.enter, (amplitude, basis.variances, basis.factor)),
            *root.tensors(),
            shards=training.shards,
        )

    def _whitened_rows(
        self, amplitude: Tensor, variances: Tensor, factor: Tensor, *root: Tensor
    ) -> Iterator[Tensor]:
        """Blocks of rows of Rᵀ Ψ."""
        tensors = self.root.with_tensors(*root)
        for block in self.features.basis.weighted_rows(tensors, variances, factor):
            yield amplitude * block

    def trace_term(self) -> Tensor:
        features = self.features
        total = features.amplitude.square() * features.basis.trace(self.root)
        return total - self._gram.diagonal().sum()

    def bound_gap(self) -> Tensor:
        trace = self.trace_term()
        if self.complement == "prior":
            return trace
        return self._freedom * torch.log1p(trace / self._freedom)

    @torch.no_grad()
    def effective_parameters(self) -> Tensor:
        # Ψ grows with the root of all variances; l = r log(1 + t/r) and l = t both have the slope t
        # times the variance outside the span
        outside = self.complement_variance * self.trace_term().clamp(min=0)
        return super().effective_parameters() + outside

    @torch.no_grad()
    def weight_covariance(self, max_numbers: int) -> WeightCovariance | None:
        rank = 2 * self.features.num_coordinates
        if len(self.scale) * rank > max_numbers:
            return None
        size, s = len(self._gram), self.complement_variance
        identity = torch.eye(size, dtype=self._gram.dtype, device=self._gram.device)
        basis = self.features.whitened(identity)  # Q
        columns = torch.cat([basis, basis @ self.factorization.inverse_root()], 1)
        signs = torch.cat([-s.expand(size), s.new_ones(size)])
        return WeightCovariance(float(s), columns, signs)

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "gram": own(self._gram),
            "complement_variance": own(self.complement_variance),
        }

    @classmethod
    @torch.no_grad()
    def restored(
        cls,
        state: dict[str, Any],
        training: TrainingSet,
        prior: PriorValues,
        root: CurvatureRoot,
        features: Projection,
        complement: Complement,
    ) -> SparsePosterior:
        """The posterior that had this `state`."""
        posterior = cls.with_factor(state, training, prior, root)
        posterior.complement, posterior.features = complement, features
        posterior._gram = state["gram"]
        posterior.complement_variance = state["complement_variance"]
        return posterior

    @cached_property
    def complement_variance(self) -> Tensor:
        """s, 0-d, without a graph."""
        with torch.no_grad():
            if self.complement == "prior":
                return self.variances.new_ones(())
            return 1 / (1 + self.trace_term().clamp(min=0) / self._freedom)

    @torch.no_grad()
    def widened_by(self, residual: Tensor) -> SparsePosterior:
        if self.complement == "prior":
            return self
        fitted = self.complement_variance
        scatter, expected = self.training.shards.sum(self._scatter(residual))
        s = torch.where(expected > 0, scatter / expected, fitted)
        widened = copy.copy(self)
        widened.__dict__.pop("at_data", None)  # which is for the variance as fitted
        widened.complement_variance = torch.maximum(s, fitted).clamp(max=1)
        return widened

    def _scatter(self, residual: Tensor) -> Tensor:
        """The part of this process in the numerator and denominator of s, (2,)."""
        features, total = self.features, residual.new_zeros(2)
        prior = features.amplitude.square() * features.basis.diagonal()
        for rows, block in features.basis.pieces():
            block, root, r = features.amplitude * block, self.root.rows(rows), residual[rows]
            outside = prior[rows] - block @ block.mT
            r = r.unsqueeze(-1)
            total[0] += (r.mT @ outside @ r).sum()
            seen = root.t_apply(root.t_apply(outside).mT)  # Rᵀ D R
            informed = root.t_apply(root.t_apply(self._informed(block)).mT)  # Rᵀ V R
            total[0] += (seen * informed).sum() - seen.diagonal(dim1=1, dim2=2).sum()
            total[1] += seen.square().sum()
        return total

    @property
    def _freedom(self) -> int:
        """r, the number of directions outside the span."""
        return max(1, self.training.num_parameters - self.features.basis.rank)

    def solve(self, z: Tensor) -> Tensor:
        right = self.whitened_t_product(z.unsqueeze(-1))
        return self.factorization.solve(right).squeeze(-1)

    def precision_solve(self, b: Tensor) -> Tensor:
        return self.factorization.solve(b)

    @differentiable_in_factors
    def covariance(self, factors: Factors) -> Tensor:
        rows = self.features.at(factors).flatten(0, 1)
        half = self._half(rows)
        outside = gram(factors, variances=self.variances) - rows @ rows.mT
        return self.complement_variance * outside + half.mT @ half

    @differentiable_in_factors
    def marginal_covariance(self, factors: Factors) -> Tensor:
        rows = self.features.at(factors)
        outside = diagonal_blocks(factors, self.variances) - rows @ rows.mT
        return self.complement_variance * outside + self._informed(rows)

    @torch.no_grad()
    def training_covariance(self) -> Tensor:
        informed, outside = self.training_parts()
        return informed + outside

    @torch.no_grad()
    def training_parts(self) -> tuple[Tensor, Tensor]:
        features, s = self.features, self.complement_variance
        outside = s * features.amplitude.square() * features.basis.diagonal()
        informed = torch.empty_like(outside)
        for rows, block in features.basis.pieces():
            block = features.amplitude * block
            informed[rows] = self._informed(block)
            outside[rows] -= s * (block @ block.mT)
        return informed, outside

    @torch.no_grad()
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        training, factor = self.training, self.factorization.factor
        e = self._standard_normal(training.num_parameters, num_samples, generator=generator)
        inner = self._standard_normal(len(factor), num_samples, generator=generator)
        inner = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
        e = self.complement_variance.sqrt() * e
        return e + self.features.whitened(inner - self.features.t_whitened(e))

    def bytes_per_row(self) -> int:
        return 4 * self.training.num_outputs * len(self._gram) * self.scale.element_size()

    def _half(self, rows: Tensor) -> Tensor:
        """L⁻¹ Ψ*ᵀ, (m x rows)."""
        return torch.linalg.solve_triangular(self.factorization.factor, rows.mT, upper=False)

    def _informed(self, rows: Tensor) -> Tensor:
        """Ψ_n A⁻¹ Ψ_nᵀ, (n x C x C), for rows (n x C x m)."""
        half = self._half(rows.flatten(0, 1)).mT.unflatten(0, rows.shape[:2])
        return half @ half.mT
