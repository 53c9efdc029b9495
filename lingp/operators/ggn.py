"""The generalised Gauss-Newton matrix Jᵀ R Rᵀ J (P x P) as a LinearOperator over layer factors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from linear_operator.operators import DenseLinearOperator, DiagLinearOperator, LinearOperator
from linear_operator.utils.getitem import _equal_indices, _is_noop_index
from linear_operator.utils.memoize import cached
from torch import Tensor

from lingp.linalg.streaming import streamed_gram
from lingp.linearization.factors import Factors
from lingp.operators.combined import combine_outputs
from lingp.operators.contractions import gram
from lingp.operators.exact import (
    CholeskySolved,
    ExactAddedDiagLinearOperator,
    ExactDenseLinearOperator,
)
from lingp.operators.indexing import fold_columns, unfold_columns
from lingp.operators.jacobian import JacobianLinearOperator
from lingp.operators.repeated import Unbatched

_PIECE_SCALARS = 1 << 24  # numbers of Φ that are written out at once


class GGNLinearOperator(Unbatched, CholeskySolved, LinearOperator):
    """G = Φᵀ Φ with Φ = Rᵀ J, R = blockdiag(R_n), R_n R_nᵀ = −∇²_f log p(y_n | f_n).

    Products and the diagonal never form a P x P matrix. With N·K < P the matrix is singular; add a
    prior precision, `ggn + DiagLinearOperator(precision)`: that sum is solved in the smaller of
    weight space (P) and function space (N·K).

    Use `GGNLinearOperator.from_factors(factors, curvature_root)`.

    Parameters
    ----------
    root : JacobianLinearOperator (N·K x P)
        Φ, which is a Jacobian of K combinations of the outputs.
    """

    def __init__(self, root: JacobianLinearOperator) -> None:
        super().__init__(root)
        self.root = root

    @classmethod
    def from_factors(cls, factors: Factors, curvature_root: Tensor) -> GGNLinearOperator:
        """The GGN of layer factors.

        Parameters
        ----------
        factors : Factors
            J (N·C x P).
        curvature_root : (N, C, K) tensor
            Any root R_n of the C x C curvature at each point; gradients flow to it.
        """
        expected = (factors.num_data, factors.num_outputs)
        if curvature_root.dim() != 3 or tuple(curvature_root.shape[:2]) != expected:
            raise ValueError(
                f"curvature_root: got shape {tuple(curvature_root.shape)}; expected (N, C, K) with "
                f"N = {expected[0]}, C = {expected[1]}"
            )
        return cls(JacobianLinearOperator.from_factors(combine_outputs(factors, curvature_root)))

    @cached
    def to_dense(self) -> Tensor:
        factors = self.root.factors
        start = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        return streamed_gram(
            lambda *tensors: _pieces(factors.with_tensors(tensors)), start, *factors.tensors()
        )

    def _size(self) -> torch.Size:
        return torch.Size((self.root.shape[1],) * 2)

    def _diagonal(self) -> Tensor:
        diagonal = torch.zeros(self.shape[0], dtype=self.dtype, device=self.device)
        for piece in _pieces(self.root.factors):
            diagonal = diagonal + piece.square().sum(0)
        return diagonal

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.root._t_matmul(self.root._matmul(rhs))

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self._matmul(rhs)

    def _transpose_nonbatch(self) -> GGNLinearOperator:
        return self

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        if _is_noop_index(row_index) and _is_noop_index(col_index):
            return self
        left = self.root.columns(row_index)
        if _equal_indices(row_index, col_index):
            return ExactDenseLinearOperator(left.mT @ left)
        return DenseLinearOperator(left.mT @ self.root.columns(col_index))

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows, row_place = torch.unique(row_index, return_inverse=True)
        cols, col_place = torch.unique(col_index, return_inverse=True)
        left, right = self.root.columns(rows), self.root.columns(cols)
        if len(rows) * len(cols) <= 16 * row_index.numel():
            return (left.mT @ right)[row_place, col_place]
        return (left[:, row_place] * right[:, col_place]).sum(0)

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        plain = super().add_diagonal(diag)
        return self + plain._diag_tensor

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, DiagLinearOperator) and not other.batch_shape:
            return GGNAddedDiagLinearOperator(self, other)
        return super().__add__(other)


class GGNAddedDiagLinearOperator(ExactAddedDiagLinearOperator):
    """G + D with a positive diagonal D, solved in the smaller space.

    P <= N·K: Cholesky of the P x P matrix. Otherwise, with S = I + Φ D⁻¹ Φᵀ (N·K x N·K),

        (G + D)⁻¹ b = D⁻¹ (b − Φᵀ S⁻¹ Φ D⁻¹ b)        log det(G + D) = log det S + log det D

    (Woodbury). Asking for `cholesky()` itself always forms P x P.
    """

    @property
    def _in_function_space(self) -> bool:
        ggn = self._linear_op
        return isinstance(ggn, GGNLinearOperator) and ggn.root.shape[0] < self.shape[-1]

    @cached(name="site_cholesky")
    def _site_cholesky(self) -> Tensor:
        """L of S = I + Φ D⁻¹ Φᵀ: (N·K, N·K). All eigenvalues are at least 1: no jitter."""
        variances = 1 / self._diag_tensor._diagonal()
        kernel = gram(self._linear_op.root.factors, variances=variances)
        return torch.linalg.cholesky(
            kernel + torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
        )

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        if not self._in_function_space:
            return super().solve(right_tensor, left_tensor)
        root, precision = self._linear_op.root, self._diag_tensor._diagonal().unsqueeze(-1)
        matrix, shape = fold_columns(right_tensor)
        scaled = matrix / precision
        sites = torch.cholesky_solve(root._matmul(scaled), self._site_cholesky())
        out = unfold_columns(scaled - root._t_matmul(sites) / precision, shape)
        return out if left_tensor is None else left_tensor @ out

    def _solve(self, rhs: Tensor, preconditioner: Any = None, num_tridiag: int | None = 0) -> Any:
        return super()._solve(rhs, preconditioner, num_tridiag) if num_tridiag else self.solve(rhs)

    def inv_quad(self, inv_quad_rhs: Tensor, reduce_inv_quad: bool = True) -> Tensor:
        if not self._in_function_space:
            return super().inv_quad(inv_quad_rhs, reduce_inv_quad)
        # bᵀ D⁻¹ b − |L⁻¹ Φ D⁻¹ b|² would cancel when D is small
        matrix = inv_quad_rhs.unsqueeze(-1) if inv_quad_rhs.dim() == 1 else inv_quad_rhs
        quad = (matrix * self.solve(matrix)).sum(-2)
        return quad.sum(-1) if reduce_inv_quad or inv_quad_rhs.dim() == 1 else quad

    def inv_quad_logdet(
        self,
        inv_quad_rhs: Tensor | None = None,
        logdet: bool | None = False,
        reduce_inv_quad: bool | None = True,
    ) -> tuple[Tensor | None, Tensor | None]:
        if not self._in_function_space:
            return super().inv_quad_logdet(inv_quad_rhs, logdet, reduce_inv_quad)
        quad = log_determinant = None
        if inv_quad_rhs is not None:
            quad = self.inv_quad(inv_quad_rhs, bool(reduce_inv_quad))
        if logdet:
            site_diagonal = self._site_cholesky().diagonal()
            precision = self._diag_tensor._diagonal()
            log_determinant = 2 * site_diagonal.log().sum() + precision.log().sum()
        return quad, log_determinant


def _pieces(factors: Factors) -> Iterator[Tensor]:
    """Rows of Φ, dense, for a few points at a time, (n·K, P) each."""
    step = max(1, _PIECE_SCALARS // max(1, factors.num_outputs * factors.num_parameters))
    for start in range(0, factors.num_data, step):
        yield factors.rows(slice(start, start + step)).jacobian().flatten(0, 1)
