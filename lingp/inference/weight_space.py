"""Exact inference by a Cholesky factorisation of I + Φᵀ Φ, (P x P)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lingp.inference.factorize import factorize
from lingp.inference.posterior import FactorizedPosterior, differentiable_in_factors
from lingp.inference.prior_values import PriorValues
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_covariance import WeightCovariance
from lingp.likelihoods import CurvatureRoot, UniformRoot
from lingp.linearization import Factors
from lingp.runtime.progress import track


class WeightSpace(FactorizedPosterior):
    """L Lᵀ = I + Φᵀ Φ, accumulated over chunks of rows.

        log det     2 Σ_i log L_ii
        Cov f*      Vᵀ V,  V = L⁻¹ Φ*ᵀ; at the data from (L Lᵀ)⁻¹, where rows are many
        sample      L⁻ᵀ e,  e ~ N(0, I_P)

    Memory is a few P x P matrices, free of N.
    """

    def __init__(self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot) -> None:
        super().__init__(training, prior, root)
        ggn = weighted_ggn(training, root)
        squared = self.scale.unsqueeze(-1) * ggn * self.scale
        squared.diagonal().add_(1)
        self.factorization = factorize(
            squared,
            self._whitened_rows,
            training.shards.enter(self.scale),
            *root.tensors(),
            shards=training.shards,
        )

    def _whitened_rows(self, scale: Tensor, *root: Tensor) -> Iterator[Tensor]:
        """Blocks of rows of Φ."""
        for block in _weighted_rows(self.training, self.root.with_tensors(*root)):
            yield block * scale

    def solve(self, z: Tensor) -> Tensor:
        z = z.unsqueeze(-1)
        e = self.factorization.solve(self.whitened_t_product(z))
        # one step of refinement: the residual is computed with Φ, not with its square
        gradient = self.whitened_t_product(z - self.whitened_product(e)) - e
        return (e + self.factorization.solve(gradient)).squeeze(-1)

    def precision_solve(self, b: Tensor) -> Tensor:
        e = self.factorization.solve(b)
        rest = b - e - self.whitened_t_product(self.whitened_product(e))
        return e + self.factorization.solve(rest)

    def _half(self, factors: Factors) -> Tensor:
        """L⁻¹ Φ*ᵀ, (P x n·C)."""
        rows = factors.jacobian().flatten(0, 1) * self.scale  # (n·C, P)
        return torch.linalg.solve_triangular(self.factorization.factor, rows.mT, upper=False)

    @differentiable_in_factors
    def covariance(self, factors: Factors) -> Tensor:
        half = self._half(factors)
        return half.mT @ half

    @differentiable_in_factors
    def marginal_covariance(self, factors: Factors) -> Tensor:
        half = self._half(factors).mT.unflatten(0, (factors.num_data, factors.num_outputs))
        return half @ half.mT  # (n, C, P) (n, P, C)

    @torch.no_grad()
    def training_covariance(self) -> Tensor:
        training, factor = self.training, self.factorization.factor
        saved = training.num_data * (training.num_outputs - 1)  # solves, for an inverse
        if self.factorization.from_qr or saved < len(factor):
            return super().training_covariance()
        inverse = torch.cholesky_inverse(factor)
        return training.row_blocks(self.scale.unsqueeze(-1) * inverse * self.scale)

    @torch.no_grad()
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        factor = self.factorization.factor
        noise = self._standard_normal(len(factor), num_samples, generator=generator)
        return torch.linalg.solve_triangular(factor.mT, noise, upper=True)

    @torch.no_grad()
    def weight_covariance(self, max_numbers: int) -> WeightCovariance | None:
        if len(self.scale) ** 2 > max_numbers:
            return None
        columns = self.factorization.inverse_root()
        return WeightCovariance(0.0, columns, columns.new_ones(len(columns)))

    def bytes_per_row(self) -> int:
        training = self.training
        return 4 * training.num_outputs * training.num_parameters * self.scale.element_size()


def weighted_ggn(training: TrainingSet, root: CurvatureRoot) -> Tensor:
    """Jᵀ R Rᵀ J, (P x P), differentiable in R."""
    if isinstance(root, UniformRoot):
        return training.shards.mean(root.scale).square() * training.unit_ggn()
    dense = root.dense()
    return training.ggn(dense @ dense.mT)


def _weighted_rows(training: TrainingSet, root: CurvatureRoot) -> Iterator[Tensor]:
    """Blocks of rows of Rᵀ J."""
    chunks = track(training.dense_chunks(), "factorising Φ", show=training.progress)
    for rows, jacobian in chunks:
        yield root.rows(rows).t_apply(jacobian).flatten(0, 1)
