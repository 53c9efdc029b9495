"""One matrix repeated over batch dimensions, without copies."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import (
    DenseLinearOperator,
    LinearOperator,
    TriangularLinearOperator,
)
from torch import Tensor

from lingp.operators.exact import CholeskySolved


class Unbatched:
    """Mixin, left of a `LinearOperator` without batch dimensions: expanding it repeats it."""

    def _expand_batch(self, batch_shape: Any) -> Any:
        batch_shape = torch.Size(batch_shape)
        return RepeatedLinearOperator(self, repeats=batch_shape) if batch_shape else self

    def _unsqueeze_batch(self, dim: int) -> Any:
        return self._expand_batch((1,))

    def _permute_batch(self, *dims: int) -> Any:
        return self

    def _svd(self) -> tuple[LinearOperator, Tensor, LinearOperator]:
        u, s, vh = torch.linalg.svd(self.to_dense(), full_matrices=False)  # type: ignore[attr-defined]
        return DenseLinearOperator(u), s, DenseLinearOperator(vh.mT)

    def repeat(self, *sizes: Any) -> Any:
        sizes = tuple(sizes[0]) if len(sizes) == 1 else sizes
        if sizes[-2:] != (1, 1):
            raise RuntimeError(f"repeat: got {sizes}; only batch dimensions can be repeated")
        return self._expand_batch(sizes[:-2])


class RepeatedLinearOperator(CholeskySolved, LinearOperator):
    """`base` (m x n, no batch dimensions) in every place of `repeats`: (*repeats, m, n)."""

    def __init__(self, base: LinearOperator, repeats: torch.Size) -> None:
        super().__init__(base, repeats=repeats)
        self.base = base
        self.repeats = repeats

    def to_dense(self) -> Tensor:
        return self.base.to_dense().expand(self.shape)

    def _size(self) -> torch.Size:
        return self.repeats + self.base.shape

    def _diagonal(self) -> Tensor:
        return self.base._diagonal().expand(self.shape[:-1])

    def _matmul(self, rhs: Tensor) -> Tensor:
        batch_shape = torch.broadcast_shapes(self.repeats, rhs.shape[:-2])
        out = self.base._matmul(rhs)
        return out.expand(*batch_shape, *out.shape[-2:])

    def _transpose_nonbatch(self) -> LinearOperator:
        return RepeatedLinearOperator(self.base.mT, self.repeats)

    def _cholesky(self, upper: bool | None = False) -> LinearOperator:
        factor = self.base.cholesky(upper=upper).to_dense()
        return TriangularLinearOperator(factor.expand(self.shape), upper=upper)

    def _mul_constant(self, other: Tensor) -> LinearOperator:
        if other.dim():
            return super()._mul_constant(other)
        return RepeatedLinearOperator(self.base._mul_constant(other), self.repeats)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        base = self.base._getitem(row_index, col_index)
        return base._expand_batch(torch.empty(self.repeats, device="meta")[batch_indices].shape)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        row_index, col_index, *_ = torch.broadcast_tensors(row_index, col_index, *batch_indices)
        return self.base._get_indices(row_index, col_index)

    def _expand_batch(self, batch_shape: Any) -> LinearOperator:
        return RepeatedLinearOperator(self.base, torch.Size(batch_shape))

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return RepeatedLinearOperator(
            self.base, torch.Size((*self.repeats[:dim], 1, *self.repeats[dim:]))
        )

    def _permute_batch(self, *dims: int) -> LinearOperator:
        return RepeatedLinearOperator(self.base, torch.Size(self.repeats[d] for d in dims))

    def _sum_batch(self, dim: int) -> LinearOperator:
        rest = torch.Size((*self.repeats[:dim], *self.repeats[dim + 1 :]))
        summed = self.base * float(self.repeats[dim])
        return summed._expand_batch(rest) if rest else summed

    def repeat(self, *sizes: Any) -> LinearOperator:
        sizes = tuple(sizes[0]) if len(sizes) == 1 else sizes
        repeats = torch.empty(self.repeats, device="meta").repeat(*sizes[:-2]).shape
        return RepeatedLinearOperator(self.base, repeats)
