"""The neural tangent kernel K = J Σ0 J'ᵀ (N·C x M·C) as a LinearOperator over layer factors."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator
from linear_operator.utils.broadcasting import _matmul_broadcast_shape
from linear_operator.utils.getitem import _equal_indices
from torch import Tensor

from lingp.linearization.factors import Factors
from lingp.operators.contractions import diagonal_blocks, expand_variances, gram
from lingp.operators.exact import CholeskySolved, ExactDenseLinearOperator
from lingp.operators.indexing import fold_columns, unfold_columns
from lingp.operators.jacobian import JacobianLinearOperator
from lingp.operators.per_weight import needs_columns
from lingp.operators.products import matrix_pays
from lingp.operators.repeated import Unbatched

# Points per piece where single blocks J_n Σ0 J'_mᵀ are wanted: each piece forms piece² of them.
_PAIRS = 16


class NTKLinearOperator(Unbatched, CholeskySolved, LinearOperator):
    """K = J diag(variances) J'ᵀ; row `n·C + c` is output `c` of point `n`.

    Symmetric (J' = J) unless a second Jacobian is given. The diagonal and its C x C blocks never
    form the matrix; products form it once they have paid for it (see `lingp.operators.products`).
    What needs a factorisation (solves, log determinants, roots, samples) forms it and uses dense
    Cholesky at every size; see `lingp.operators.exact`.

    Use `NTKLinearOperator.from_factors(factors, other, variances)`; the constructor is
    linear_operator's.

    Parameters
    ----------
    variances : (L,) or (P,) tensor
        Prior variance of each parameter tensor, or of each weight; gradients flow to it.
    left : JacobianLinearOperator (N·C x P)
    right : JacobianLinearOperator (M·C x P), optional
    """

    def __init__(
        self,
        variances: Tensor,
        left: JacobianLinearOperator,
        right: JacobianLinearOperator | None = None,
    ) -> None:
        super().__init__(variances, left, *(() if right is None else (right,)))
        self.variances = variances
        self.left = left
        self.right = left if right is None else right
        self.is_symmetric = right is None
        self._dense: Tensor | None = None
        self._spent = 0.0  # flops of products through the factors so far

    @classmethod
    def from_factors(
        cls, factors: Factors, other: Factors | None = None, variances: Tensor | None = None
    ) -> NTKLinearOperator:
        """The kernel of layer factors with themselves or with others.

        Parameters
        ----------
        factors : Factors
            J (N·C x P).
        other : Factors, optional
            J' (M·C x P); the kernel is symmetric without it.
        variances : (L,) or (P,) tensor, optional
            Prior variance of each parameter tensor, or of each weight; 1 by default.
        """
        if variances is None:
            variances = torch.ones(len(factors.slices), dtype=factors.dtype, device=factors.device)
        left = JacobianLinearOperator.from_factors(factors)
        if other is None:
            return cls(variances, left)
        return cls(variances, left, JacobianLinearOperator.from_factors(other))

    @property
    def num_outputs(self) -> int:
        """C."""
        return self.left.num_outputs

    def diagonal_blocks(self) -> Tensor:
        """K(x_n, x'_n) for every n, (N, C, C), without the matrix."""
        if self.is_symmetric:
            return diagonal_blocks(self.left.factors, self.variances)
        return paired_blocks(self.left.factors, self.right.factors, self.variances)

    def to_dense(self) -> Tensor:
        # what was formed without a graph does not serve where gradients are wanted
        differentiable = torch.is_grad_enabled() and self.requires_grad
        if self._dense is None or (differentiable and not self._dense.requires_grad):
            other = None if self.is_symmetric else self.right.factors
            self._dense = gram(self.left.factors, other, self.variances)
        return self._dense

    def matmul(self, other: Any) -> Any:
        wanted = torch.is_grad_enabled() and (self.requires_grad or other.requires_grad)
        if wanted or isinstance(other, LinearOperator):
            return super().matmul(other)
        # linear_operator's way would rebuild the operator, and forget its matrix, for each product
        _matmul_broadcast_shape(self.shape, other.shape)
        return self._matmul(other)

    def _size(self) -> torch.Size:
        return torch.Size((self.left.shape[0], self.right.shape[0]))

    def _diagonal(self) -> Tensor:
        return self.diagonal_blocks().diagonal(dim1=-2, dim2=-1).flatten()

    def _matmul(self, rhs: Tensor) -> Tensor:
        matrix, shape = fold_columns(rhs)
        if self._forms_matrix(matrix.shape[-1]):
            return unfold_columns(self.to_dense() @ matrix, shape)
        weights = self.right._t_matmul(matrix)  # (P, K)
        weights = weights * expand_variances(self.left.factors, self.variances).unsqueeze(-1)
        return unfold_columns(self.left._matmul(weights), shape)

    def _forms_matrix(self, width: int) -> bool:
        """Whether a product of `width` columns goes through the matrix; counts what it spends."""
        if self._dense is not None:
            return True
        other = None if self.is_symmetric else self.right.factors
        left = self.left.factors
        by_columns = needs_columns(left, self.variances)
        pays, self._spent = matrix_pays(left, other, width, self._spent, by_columns)
        return pays

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self._transpose_nonbatch()._matmul(rhs)

    def _transpose_nonbatch(self) -> NTKLinearOperator:
        return (
            self if self.is_symmetric else NTKLinearOperator(self.variances, self.right, self.left)
        )

    def _mul_constant(self, other: Tensor) -> LinearOperator:
        if other.dim() or bool(other < 0):  # a negative multiple is no kernel: variances are >= 0
            return super()._mul_constant(other)
        return NTKLinearOperator(self.variances * other, *self._args[1:])

    def _cholesky(self, upper: bool | None = False) -> LinearOperator:
        if not self.is_symmetric:
            raise RuntimeError(
                f"K(x, x') of shape {tuple(self.shape)} between two sets of inputs has no Cholesky "
                "factor; solve with K(x, x)"
            )
        return super()._cholesky(upper=upper)

    def _symeig(self, eigenvectors: bool = False, return_evals_as_lazy: bool | None = False) -> Any:
        if not self.is_symmetric:
            raise RuntimeError(
                f"K(x, x') of shape {tuple(self.shape)} between two sets of inputs has no "
                "symmetric eigendecomposition; use svd"
            )
        return super()._symeig(eigenvectors=eigenvectors)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        left_points, rows = self.left.points(row_index)
        if self.is_symmetric and _equal_indices(row_index, col_index):
            selected = NTKLinearOperator(self.variances, self.left.rows(left_points))
            if rows is None:
                return selected
            return ExactDenseLinearOperator(selected.to_dense()[rows][:, rows])
        right_points, cols = self.right.points(col_index)
        left, right = self.left.rows(left_points), self.right.rows(right_points)
        selected = NTKLinearOperator(self.variances, left, right)
        if rows is None and cols is None:
            return selected
        dense = selected.to_dense()
        dense = dense if rows is None else dense[rows]
        return DenseLinearOperator(dense if cols is None else dense[:, cols])

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows, row_place = torch.unique(row_index.reshape(-1), return_inverse=True)
        cols, col_place = torch.unique(col_index.reshape(-1), return_inverse=True)
        if len(rows) * len(cols) <= _PAIRS * row_index.numel():
            dense = self._getitem(rows, cols).to_dense()
            return dense[row_place, col_place].view(row_index.shape)
        num_outputs = self.num_outputs
        flat_rows, flat_cols = row_index.reshape(-1), col_index.reshape(-1)
        left = self.left.factors.rows(flat_rows // num_outputs)
        right = self.right.factors.rows(flat_cols // num_outputs)
        blocks = paired_blocks(left, right, self.variances)
        at = torch.arange(len(flat_rows), device=self.device)
        return blocks[at, flat_rows % num_outputs, flat_cols % num_outputs].view(row_index.shape)


def paired_blocks(left: Factors, right: Factors, variances: Tensor | None = None) -> Tensor:
    """J_n Σ0 J'_nᵀ for every n, (N, C, C), where J and J' are at different points.

    Both must have N points. N² of anything is never formed.
    """
    num_outputs = left.num_outputs
    parts = []
    for start in range(0, left.num_data, _PAIRS):
        rows = slice(start, min(start + _PAIRS, left.num_data))
        count = rows.stop - start
        block = gram(left.rows(rows), right.rows(rows), variances)
        block = block.view(count, num_outputs, count, num_outputs)
        parts.append(block.diagonal(dim1=0, dim2=2).movedim(-1, 0))
    if not parts:
        return torch.zeros(0, num_outputs, num_outputs, dtype=left.dtype, device=left.device)
    return torch.cat(parts)
