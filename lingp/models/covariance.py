"""A covariance that may be singular and can still be sampled from."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator, RootLinearOperator
from torch import Tensor

from lingp.linalg.psd import square_root
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
