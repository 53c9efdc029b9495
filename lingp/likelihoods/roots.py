"""Curvature roots R: Λ_n = R_n R_nᵀ, the second half of the whitened Jacobian.

    Φ = Rᵀ J Σ0^{1/2},     R = blockdiag(R_n),     R_n (C x K)

A root multiplies tensors whose first two axes are data and outputs. Its kinds differ only in what
they store, so that noise of one size never becomes N matrices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from typing_extensions import Self

from lingp.runtime.plain import storable


class CurvatureRoot(ABC):
    """R = blockdiag(R_1 .. R_N), R_n (C x K).

    Every kind is a dataclass; its first field is the one tensor that it stores.
    """

    num_data: int
    num_outputs: int

    @property
    @abstractmethod
    def rank(self) -> int:
        """K, the number of columns of every R_n."""

    @abstractmethod
    def apply(self, w: Tensor) -> Tensor:
        """R w: (N x K x S) -> (N x C x S)."""

    @abstractmethod
    def t_apply(self, v: Tensor) -> Tensor:
        """Rᵀ v: (N x C x S) -> (N x K x S)."""

    @abstractmethod
    def rows(self, index: slice | Tensor) -> Self:
        """The roots of some of the data, a slice or row numbers (n,)."""

    def tensors(self) -> tuple[Tensor, ...]:
        """What the root stores, in the order `with_tensors` takes it."""
        return (getattr(self, self._stored()),)

    def with_tensors(self, *tensors: Tensor) -> Self:
        """The same kind of root with other values."""
        return replace(self, **{self._stored(): tensors[0]})  # type: ignore[type-var]

    def _stored(self) -> str:
        """The name of the one tensor, the first field of the dataclass."""
        return fields(self)[0].name  # type: ignore[arg-type]

    @abstractmethod
    def weighted(self, weights: Tensor) -> CurvatureRoot:
        """The root of w_n Λ_n, for one weight w_n >= 0 per datum, (N,)."""

    def scaled(self, factor: Tensor) -> CurvatureRoot:
        """factor · R, for a 0-d tensor."""
        return self.with_tensors(*(factor * t for t in self.tensors()))

    def dense(self) -> Tensor:
        """R_n written out, (N x C x K)."""
        like = self.tensors()[0]
        eye = torch.eye(self.rank, dtype=like.dtype, device=like.device)
        return self.apply(eye.expand(self.num_data, -1, -1))

    def detach(self) -> CurvatureRoot:
        """The root cut from the graph of the likelihood's hyperparameters."""
        return self.with_tensors(*(t.detach() for t in self.tensors()))

    def congruence(self, gram: Tensor) -> Tensor:
        """Rᵀ G R for a symmetric G: (N·C x N·C) -> (N·K x N·K)."""
        size = self.num_data * self.rank
        half = self.t_apply(gram.reshape(self.num_data, self.num_outputs, -1))  # (N, K, N·C)
        half = half.reshape(size, -1).mT.reshape(self.num_data, self.num_outputs, size)
        return self.t_apply(half).reshape(size, size)


class _CommonRoot(CurvatureRoot):
    """Roots that are the same for all data."""

    def rows(self, index: slice | Tensor) -> Self:
        size = len(range(self.num_data)[index]) if isinstance(index, slice) else len(index)
        return replace(self, num_data=size)  # type: ignore[type-var]


@storable
@dataclass(frozen=True)
class UniformRoot(_CommonRoot):
    """R_n = scale · I, the same for all data and outputs (one noise variance).

    Attributes
    ----------
    scale
        0-d tensor.
    """

    scale: Tensor
    num_data: int
    num_outputs: int

    @property
    def rank(self) -> int:
        return self.num_outputs

    def apply(self, w: Tensor) -> Tensor:
        return self.scale * w

    def t_apply(self, v: Tensor) -> Tensor:
        return self.scale * v

    def weighted(self, weights: Tensor) -> DiagonalRoot:
        values = self.scale * weights.sqrt().unsqueeze(-1)
        return DiagonalRoot(values.expand(-1, self.num_outputs))

    def congruence(self, gram: Tensor) -> Tensor:
        return self.scale.square() * gram


@storable
@dataclass(frozen=True)
class SharedRoot(_CommonRoot):
    """R_n = values, one matrix for all data (correlated noise).

    Attributes
    ----------
    values
        (C x K).
    """

    values: Tensor
    num_data: int

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        return self.values.shape[0]

    @property
    def rank(self) -> int:
        return self.values.shape[1]

    def apply(self, w: Tensor) -> Tensor:
        return self.values @ w

    def t_apply(self, v: Tensor) -> Tensor:
        return self.values.mT @ v

    def weighted(self, weights: Tensor) -> DenseRoot:
        return DenseRoot(weights.sqrt().reshape(-1, 1, 1) * self.values)


@dataclass(frozen=True)
class _StoredRoot(CurvatureRoot):
    """Roots that store `values` for each datum, first axis the data, second the outputs."""

    values: Tensor

    @property
    def num_data(self) -> int:  # type: ignore[override]
        return self.values.shape[0]

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        return self.values.shape[1]

    def rows(self, index: slice | Tensor) -> Self:
        return type(self)(self.values[index])

    def weighted(self, weights: Tensor) -> Self:
        shape = (-1,) + (1,) * (self.values.dim() - 1)
        return type(self)(weights.sqrt().reshape(shape) * self.values)


@storable
@dataclass(frozen=True)
class DiagonalRoot(_StoredRoot):
    """R_n = diag(values_n): outputs are independent given f.

    Attributes
    ----------
    values
        (N x C); zero where a datum says nothing.
    """

    @property
    def rank(self) -> int:
        return self.num_outputs

    def apply(self, w: Tensor) -> Tensor:
        return self.values.unsqueeze(-1) * w

    def t_apply(self, v: Tensor) -> Tensor:
        return self.values.unsqueeze(-1) * v

    def congruence(self, gram: Tensor) -> Tensor:
        values = self.values.reshape(-1)
        return values.unsqueeze(-1) * gram * values


@storable
@dataclass(frozen=True)
class DenseRoot(_StoredRoot):
    """R_n = values_n, any C x K matrix (softmax, correlated noise, ...).

    Attributes
    ----------
    values
        (N x C x K).
    """

    @property
    def rank(self) -> int:
        return self.values.shape[2]

    def apply(self, w: Tensor) -> Tensor:
        return self.values @ w

    def t_apply(self, v: Tensor) -> Tensor:
        return self.values.mT @ v


@storable
@dataclass(frozen=True)
class BlockRoot(_StoredRoot):
    """R_n = blockdiag(values_n1 .. values_nL): L groups of outputs, independent given f.

    Attributes
    ----------
    values
        (N x L x A x B); R_n is (L·A x L·B).
    """

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        return self.values.shape[1] * self.values.shape[2]

    @property
    def rank(self) -> int:
        return self.values.shape[1] * self.values.shape[3]

    def apply(self, w: Tensor) -> Tensor:
        return (self.values @ w.unflatten(1, (-1, self.values.shape[3]))).flatten(1, 2)

    def t_apply(self, v: Tensor) -> Tensor:
        return (self.values.mT @ v.unflatten(1, (-1, self.values.shape[2]))).flatten(1, 2)
