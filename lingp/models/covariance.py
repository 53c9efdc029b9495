"""A covariance that may be singular and can still be sampled from."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator, RootLinearOperator
from torch import Tensor

from lingp.operators.exact import ExactDenseLinearOperator


class PosteriorCovariance(ExactDenseLinearOperator):
    """A dense PSD matrix S (n x n), of any rank.

    `root_decomposition` gives a square root, S = A Aᵀ with A (n x n), so that samples, with and
    without base samples, work when rows repeat or there are more of them than weights.
    """

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        return RootLinearOperator(DenseLinearOperator(square_root(self.to_dense())))

    def _mul_constant(self, other: Tensor) -> LinearOperator:
        if bool((torch.as_tensor(other) < 0).any()):
            return super()._mul_constant(other)
        return PosteriorCovariance(self.tensor * torch.as_tensor(other)[..., None, None])

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        block: LinearOperator = super()._getitem(row_index, col_index, *batch_indices)
        same = isinstance(row_index, slice) and row_index == col_index
        return PosteriorCovariance(block.to_dense()) if same else block


def square_root(matrix: Tensor) -> Tensor:
    """A with A Aᵀ = matrix, (n x n), for a PSD matrix of any rank."""
    size = matrix.shape[-1]
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1).clamp(min=0)
    # what rounding has done to the matrix already
    slack = size * torch.finfo(matrix.dtype).eps * largest
    eye = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    factor, info = torch.linalg.cholesky_ex(matrix + slack[..., None, None] * eye)
    if not bool((info != 0).any()):
        return factor
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
