"""Exact inference by a Cholesky factorisation of I + Φ Φᵀ, (N·K x N·K)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lingp.inference.factorize import factorize
from lingp.inference.posterior import FactorizedPosterior, differentiable_in_factors
from lingp.inference.prior_values import PriorValues
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_covariance import WeightCovariance
from lingp.likelihoods import CurvatureRoot
from lingp.linalg.psd import square_root
from lingp.linearization import Factors
from lingp.operators import diagonal_blocks, gram


class FunctionSpace(FactorizedPosterior):
    """L Lᵀ = B = I + Rᵀ K R with the kernel K = J Σ0 Jᵀ from the layers' factors.

        log det     2 Σ_i log L_ii
        Cov f*      K** - Vᵀ V,  V = L⁻¹ Rᵀ K(X, X*)
        sample      e - Φᵀ B⁻¹ (Φ e + e'),  e ~ N(0, I_P), e' ~ N(0, I_NK)     (Matheron)

    Memory is a few N·C x N·C matrices and the factors; the Jacobian is never formed. Past the
    rounding limit (L from a QR of Φᵀ) the difference K** - Vᵀ V would cancel, and covariances
    come from the least-squares residual of Φ*ᵀ instead, which takes P x n·C memory per batch.
    """

    def __init__(self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot) -> None:
        if not training.shards.alone:
            raise ValueError(
                'inference: "function_space" needs the kernel of all data in one process; with a '
                'process_group use "weight_space", Sparse(...) or Iterative(...)'
            )
        super().__init__(training, prior, root)
        squared = root.congruence(self._kernel())
        squared.diagonal().add_(1)
        self.factorization = factorize(
            squared, self._whitened_columns, self.variances, *root.tensors()
        )

    def _kernel(self) -> Tensor:
        """K at the training data, (N·C x N·C)."""
        if self.isotropic:
            return self.variances[0] * self.training.unit_gram()
        return self.training.kernel(self.variances, self.groups)

    def _whitened_columns(self, variances: Tensor, *tensors: Tensor) -> Iterator[Tensor]:
        """Blocks of columns of Φ, as rows of Φᵀ."""
        root = self.root.with_tensors(*tensors)
        scale = self.training.per_weight(variances).sqrt().unsqueeze(-1)  # (P, 1)
        size = self.training.num_data * root.rank
        width = max(size, self.training.chunk_bytes // (size * variances.element_size()))
        for block in self.training.factors().blocks:
            for slot in block.slots:
                columns = block.columns(slot)  # (N, C, p)
                for start in range(0, slot.size, width):
                    piece = root.t_apply(columns[..., start : start + width])
                    first = slot.start + start
                    yield scale[first : first + piece.shape[-1]] * piece.flatten(0, 1).mT

    def _inverse(self, w: Tensor) -> Tensor:
        """B⁻¹ w: (N x K x S) -> (N x K x S)."""
        return self.factorization.solve(w.flatten(0, 1)).view_as(w)

    def _reject(self, top: Tensor, bottom: Tensor) -> tuple[Tensor, Tensor]:
        """[top; bottom] less its projection on the range of M = [Φᵀ; I], for Mᵀ M = B.

        top (P x S), bottom (N x K x S). Rounding in the first projection is itself projected away
        by the second, because what is left is kept as a vector, never as M times something.
        """
        for _ in range(2):
            w = self._inverse(self.whitened_product(top) + bottom)
            top = top - self.whitened_t_product(w)
            bottom = bottom - w
        return top, bottom

    def solve(self, z: Tensor) -> Tensor:
        # [0; z] - M B⁻¹ z = [-Φᵀ B⁻¹ z; ...]
        z = z.unsqueeze(-1)
        top, _ = self._reject(self.scale.new_zeros(len(self.scale), 1), z)
        return -top.squeeze(-1)

    def precision_solve(self, b: Tensor) -> Tensor:
        bottom = b.new_zeros(self.training.num_data, self.root.rank, b.shape[1])
        return self._reject(b, bottom)[0]

    def _half(self, factors: Factors) -> Tensor:
        """L⁻¹ Rᵀ K(X, X*), (N·K x n·C)."""
        training = self.training
        cross = gram(training.factors(), factors, variances=self.variances)
        cross = cross.view(training.num_data, training.num_outputs, -1)
        return torch.linalg.solve_triangular(
            self.factorization.factor, self.root.t_apply(cross).flatten(0, 1), upper=False
        )

    def _residual(self, factors: Factors) -> Tensor:
        """[Φ*ᵀ; 0] less its projection on the range of M, (P + N·K x n·C)."""
        top = (factors.jacobian().flatten(0, 1) * self.scale).mT  # (P, n·C)
        bottom = top.new_zeros(self.training.num_data, self.root.rank, top.shape[1])
        top, bottom = self._reject(top, bottom)
        return torch.cat([top, bottom.flatten(0, 1)])

    @differentiable_in_factors
    def covariance(self, factors: Factors) -> Tensor:
        if self.factorization.from_qr:
            residual = self._residual(factors)
            return residual.mT @ residual
        half = self._half(factors)
        return gram(factors, variances=self.variances) - half.mT @ half

    @differentiable_in_factors
    def marginal_covariance(self, factors: Factors) -> Tensor:
        shape = (factors.num_data, factors.num_outputs)
        if self.factorization.from_qr:
            residual = self._residual(factors).mT.unflatten(0, shape)
            return residual @ residual.mT
        half = self._half(factors).mT.unflatten(0, shape)  # (n, C, N·K)
        return diagonal_blocks(factors, self.variances) - half @ half.mT

    @torch.no_grad()
    def training_covariance(self) -> Tensor:
        if self.factorization.from_qr:
            return super().training_covariance()
        training, kernel = self.training, self._kernel()
        cross = kernel.view(training.num_data, training.num_outputs, -1)
        half = torch.linalg.solve_triangular(
            self.factorization.factor, self.root.t_apply(cross).flatten(0, 1), upper=False
        ).mT.unflatten(0, cross.shape[:2])  # (N, C, N·K)
        own = kernel.view(*cross.shape[:2], *cross.shape[:2]).diagonal(dim1=0, dim2=2)
        return own.movedim(-1, 0) - half @ half.mT

    @torch.no_grad()
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        training = self.training
        e = self._standard_normal(training.num_parameters, num_samples, generator=generator)
        noise = self._standard_normal(
            training.num_data, self.root.rank, num_samples, generator=generator
        )
        return e - self.whitened_t_product(self._inverse(self.whitened_product(e) + noise))

    @torch.no_grad()
    def weight_covariance(self, max_numbers: int) -> WeightCovariance | None:
        size, rank = len(self.scale), len(self.factorization.factor)
        if size * (size if self.factorization.from_qr else rank) > max_numbers:
            return None
        if self.factorization.from_qr:
            # the difference I - U Uᵀ would cancel
            identity = torch.eye(size, dtype=self.scale.dtype, device=self.scale.device)
            root = square_root(self.precision_solve(identity))
            return WeightCovariance(0.0, root, root.new_ones(size))
        inverse = self.factorization.inverse_root()
        rows = (self.training.num_data, self.root.rank)
        columns = self.whitened_t_product(inverse.unflatten(0, rows))
        return WeightCovariance(1.0, columns, -columns.new_ones(rank))

    def bytes_per_row(self) -> int:
        training = self.training
        columns = len(self.factorization.factor)
        if self.factorization.from_qr:
            columns += training.num_parameters
        return 4 * training.num_outputs * columns * self.scale.element_size()
