"""Operators that are solved by one dense Cholesky factorisation, at every size.

linear_operator changes its algorithm with the number of rows: past `max_cholesky_size` (800)
solves, log determinants, roots and samples come from conjugate gradients and Lanczos with loose
tolerances, which on the spectra of neural tangent kernels gives variances wrong by a factor. The
operators here never do that: whatever must be factorised is formed and factorised, K = L Lᵀ, and
everything is computed from L with ordinary autograd. Sums, multiples and elementwise products of
such operators are such operators.

A matrix that is singular to working precision is factorised with the jitter that
`linear_operator.settings.cholesky_jitter` allows, and says so with a `NumericalWarning`; past that
it raises.
"""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import (
    AddedDiagLinearOperator,
    CholLinearOperator,
    DenseLinearOperator,
    DiagLinearOperator,
    LinearOperator,
    SumLinearOperator,
    ZeroLinearOperator,
    to_linear_operator,
)
from linear_operator.utils.memoize import cached
from torch import Tensor


class CholeskySolved:
    """Mixin, left of a `LinearOperator`: dense Cholesky where linear_operator looks at the size."""

    def _chol(self) -> CholLinearOperator:
        return CholLinearOperator(self.cholesky())  # type: ignore[attr-defined]

    def evaluate_kernel(self) -> Any:
        return self  # nothing inside is waiting to be evaluated, and the factorisation is kept

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        return self._chol().solve(right_tensor, left_tensor)

    def inv_quad(self, inv_quad_rhs: Tensor, reduce_inv_quad: bool = True) -> Tensor:
        if inv_quad_rhs.dim() == 1:
            return self._chol().inv_quad(inv_quad_rhs.unsqueeze(-1), reduce_inv_quad=True)
        return self._chol().inv_quad(inv_quad_rhs, reduce_inv_quad=reduce_inv_quad)

    def inv_quad_logdet(
        self,
        inv_quad_rhs: Tensor | None = None,
        logdet: bool | None = False,
        reduce_inv_quad: bool | None = True,
    ) -> tuple[Tensor | None, Tensor | None]:
        if inv_quad_rhs is not None and inv_quad_rhs.dim() == 1:
            inv_quad_rhs, reduce_inv_quad = inv_quad_rhs.unsqueeze(-1), True
        return self._chol().inv_quad_logdet(inv_quad_rhs, logdet, reduce_inv_quad)

    def diagonalization(self, method: str | None = None) -> tuple[Tensor, LinearOperator | None]:
        return super().diagonalization(method=method or "symeig")  # type: ignore[misc]

    def _choose_root_method(self) -> str:
        return "cholesky"

    def _solve(self, rhs: Tensor, preconditioner: Any = None, num_tridiag: int | None = 0) -> Any:
        # Reached when a wrapper of ours is solved; a tridiagonalisation is what only CG can give.
        if num_tridiag:
            return super()._solve(rhs, preconditioner, num_tridiag)  # type: ignore[misc]
        return self._chol().solve(rhs)

    def _preconditioner(self) -> tuple[None, None, None]:
        return None, None, None

    def _mul_matrix(self, other: LinearOperator) -> LinearOperator:
        # linear_operator would multiply two low-rank roots from Lanczos
        return ExactDenseLinearOperator(self.to_dense() * other.to_dense())  # type: ignore[attr-defined]

    def _mul_constant(self, other: Tensor) -> LinearOperator:
        if other.dim():  # one constant for each matrix of a batch
            return ExactDenseLinearOperator(self.to_dense() * other[..., None, None])  # type: ignore[attr-defined]
        return super()._mul_constant(other)  # type: ignore[misc]

    def repeat(self, *sizes: Any) -> LinearOperator:
        sizes = tuple(sizes[0]) if len(sizes) == 1 else sizes
        if self.batch_shape:  # type: ignore[attr-defined]
            return super().repeat(*sizes)  # type: ignore[misc]
        return self._expand_batch(torch.Size(sizes[:-2])) if sizes[:-2] else self  # type: ignore[attr-defined]

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        plain = super().add_diagonal(diag)  # type: ignore[misc]
        return ExactAddedDiagLinearOperator(plain._linear_op, plain._diag_tensor)

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, ZeroLinearOperator):
            return self
        if isinstance(other, DiagLinearOperator):
            return ExactAddedDiagLinearOperator(self, other)
        if isinstance(other, Tensor):
            shape = torch.broadcast_shapes(self.shape, other.shape)  # type: ignore[attr-defined]
            other = to_linear_operator(other.expand(shape))
        if isinstance(other, LinearOperator):
            return ExactSumLinearOperator(self, other)
        if other == 0:  # sum() starts from it
            return self
        return NotImplemented

    def __radd__(self, other: Any) -> LinearOperator:
        return self + other


class ExactDenseLinearOperator(CholeskySolved, DenseLinearOperator):
    """A matrix (*batch, n, n), factorised densely at every size."""

    def _transpose_nonbatch(self) -> LinearOperator:
        return ExactDenseLinearOperator(self.tensor.mT)

    def _mul_constant(self, other: Tensor) -> LinearOperator:
        return ExactDenseLinearOperator(self.tensor * other[..., None, None])

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, DenseLinearOperator):
            return ExactDenseLinearOperator(self.tensor + other.tensor)
        return super().__add__(other)


class ExactSumLinearOperator(CholeskySolved, SumLinearOperator):
    """A sum of operators, factorised densely at every size."""

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return type(self)(*super()._getitem(row_index, col_index, *batch_indices).linear_ops)


class ExactAddedDiagLinearOperator(CholeskySolved, AddedDiagLinearOperator):
    """K + D with a diagonal D, as a kernel and its noise, factorised densely at every size."""

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        return AddedDiagLinearOperator.add_diagonal(self, diag)

    def __add__(self, other: Any) -> LinearOperator:
        return AddedDiagLinearOperator.__add__(self, other)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        parts = super()._getitem(row_index, col_index, *batch_indices).linear_ops
        return ExactSumLinearOperator(*parts)

    @cached
    def to_dense(self) -> Tensor:
        dense = self._linear_op.to_dense().clone()
        dense.diagonal(dim1=-2, dim2=-1).add_(self._diag_tensor._diagonal())
        return dense


def as_exact(operator: LinearOperator) -> LinearOperator:
    """An operator equal to `operator` that is factorised densely at every size."""
    operator = operator.evaluate_kernel()
    if isinstance(operator, CholeskySolved):
        return operator
    if type(operator) is SumLinearOperator:
        return ExactSumLinearOperator(*operator.linear_ops)
    return ExactDenseLinearOperator(operator.to_dense())
