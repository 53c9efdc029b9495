"""The Jacobian J (N·C x P) of a network as a LinearOperator over its layer factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator
from linear_operator.utils.getitem import _is_noop_index
from torch import Tensor

from lingp.linearization.factors import Factors
from lingp.operators.indexing import fold_columns, points_of, unfold_columns
from lingp.operators.repeated import Unbatched

# Rows of J written out at once when single entries are asked for, in scalars.
_DENSE_SCALARS = 1 << 24


@dataclass(frozen=True)
class _Layout:
    """Factors without their numbers.

    linear_operator rebuilds an operator from its tensors for every public operation, so tensors are
    the operator's positional arguments and the rest travels in a keyword argument. A plain holder:
    a keyword argument with a method `to` or `clone` would be moved or copied.
    """

    template: Factors

    @classmethod
    def of(cls, factors: Factors) -> _Layout:
        empty = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in factors.tensors()]
        return cls(factors.with_tensors(empty))

    def fill(self, tensors: Sequence[Tensor]) -> Factors:
        return self.template.with_tensors(tensors)


class JacobianLinearOperator(Unbatched, LinearOperator):
    """J (N·C x P), from layer factors; row `n·C + c` is output `c` of point `n`.

    Products cost a few matrix products per layer. Selecting whole points (rows aligned to C) keeps
    the operator lazy; everything else that is indexed is written out, and only that.

    Use `JacobianLinearOperator.from_factors(factors)`; the constructor is linear_operator's.
    """

    def __init__(self, *tensors: Tensor, layout: _Layout) -> None:
        super().__init__(*tensors, layout=layout)
        self._layout = layout

    @classmethod
    def from_factors(cls, factors: Factors) -> JacobianLinearOperator:
        """The operator of some layer factors."""
        return cls(*factors.tensors(), layout=_Layout.of(factors))

    @property
    def factors(self) -> Factors:
        """The layer factors."""
        return self._layout.fill(self._args)

    @property
    def num_data(self) -> int:
        """N."""
        return self.factors.num_data

    @property
    def num_outputs(self) -> int:
        """C."""
        return self._layout.template.num_outputs

    @property
    def dtype(self) -> torch.dtype:
        return self.factors.dtype  # the first tensor may be an integer index

    @property
    def device(self) -> torch.device:
        return self.factors.device

    def to(self, *args: Any, **kwargs: Any) -> JacobianLinearOperator:
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        return self.from_factors(self.factors.to(dtype=dtype, device=device))

    def rows(self, points: slice | Tensor) -> JacobianLinearOperator:
        """The Jacobian at some of the points, lazily."""
        return self.from_factors(self.factors.rows(points))

    def points(self, index: Any) -> tuple[slice | Tensor, Tensor | None]:
        """Points behind a row index, and the rows to pick among theirs (None: all, in order)."""
        return points_of(index, self.num_data, self.num_outputs, self.device)

    def columns(self, index: Any) -> Tensor:
        """Some columns of J, dense: (N·C, how many)."""
        factors = self.factors
        index = torch.arange(self.shape[1], device=self.device)[index]
        if len(index) >= factors.shape[0]:
            return self.to_dense()[:, index]
        select = torch.zeros(self.shape[1], len(index), dtype=self.dtype, device=self.device)
        select[index, torch.arange(len(index), device=self.device)] = 1.0
        return factors.matmul(select).flatten(0, 1)

    def to_dense(self) -> Tensor:
        return self.factors.jacobian().flatten(0, 1)

    def _size(self) -> torch.Size:
        return self.factors.shape

    def _matmul(self, rhs: Tensor) -> Tensor:
        matrix, shape = fold_columns(rhs)
        return unfold_columns(self.factors.matmul(matrix).flatten(0, 1), shape)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        matrix, shape = fold_columns(rhs)
        matrix = matrix.unflatten(0, (self.num_data, self.num_outputs))
        return unfold_columns(self.factors.t_matmul(matrix), shape)

    def _transpose_nonbatch(self) -> TransposedJacobianLinearOperator:
        return TransposedJacobianLinearOperator(self)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        points, rows = self.points(row_index)
        selected = self if _is_noop_index(row_index) else self.rows(points)
        if not _is_noop_index(col_index):
            dense = selected.columns(col_index)
        elif rows is None:
            return selected
        else:
            dense = selected.to_dense()
        return DenseLinearOperator(dense if rows is None else dense[rows])

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        points = row_index.reshape(-1) // self.num_outputs
        outputs = row_index.reshape(-1) % self.num_outputs
        step = max(1, _DENSE_SCALARS // max(1, self.num_outputs * self.shape[1]))
        parts = []
        for at in torch.stack([points, outputs, col_index.reshape(-1)]).split(step, dim=1):
            jacobian = self.factors.rows(at[0]).jacobian()  # (step, C, P)
            parts.append(jacobian[torch.arange(len(jacobian), device=self.device), at[1], at[2]])
        return torch.cat(parts).view(row_index.shape)


class TransposedJacobianLinearOperator(Unbatched, LinearOperator):
    """Jᵀ (P x N·C), the transpose of a `JacobianLinearOperator`."""

    def __init__(self, jacobian: JacobianLinearOperator) -> None:
        super().__init__(jacobian)
        self.jacobian = jacobian

    def to_dense(self) -> Tensor:
        return self.jacobian.to_dense().mT

    def _size(self) -> torch.Size:
        return torch.Size(self.jacobian.shape[::-1])

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.jacobian._t_matmul(rhs)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self.jacobian._matmul(rhs)

    def _transpose_nonbatch(self) -> JacobianLinearOperator:
        return self.jacobian

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return self.jacobian._getitem(col_index, row_index).mT

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        return self.jacobian._get_indices(col_index, row_index)
