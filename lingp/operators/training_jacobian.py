"""The Jacobian of the network at all training inputs: its products, Grams and blocks."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from lingp.linearization import Factors, LinearizedNetwork
from lingp.linearization.inputs import Inputs, num_rows
from lingp.operators.batches import inputs_of
from lingp.operators.contractions import gram
from lingp.operators.weight_gram import RowBlocks, WeightGram
from lingp.runtime.progress import track
from lingp.runtime.shards import Shards
from lingp.runtime.value_cache import ValueCache

DENSE_CHUNK_BYTES = 1 << 27


class TrainingJacobian:
    """J (N·C x P) at the training inputs with the outputs f(x_n; θ*), in batches.

    The factors of J are kept where memory allows; else each pass over J computes them again. What
    doesn't depend on hyperparameters is computed once: `unit_gram` J Jᵀ and `unit_ggn` Jᵀ J.

    Parameters
    ----------
    linearized
        The network.
    inputs
        Batches of inputs.
    outputs
        Of all batches, (N x C).
    factors
        One per batch, or None to compute them whenever they are needed.
    factor_bytes
        Memory that the factors of all batches take together.
    keep_bytes
        Memory that they, and those of data added later, may take to be kept.
    chunk_bytes
        Memory for dense pieces of the Jacobian.
    progress
        Whether long passes show a progress bar.
    shards
        How the data are spread over processes: rows are those of this one, sums over rows those of
        all. Every process calls the same methods in the same order.
    """

    def __init__(
        self,
        linearized: LinearizedNetwork,
        inputs: list[Inputs],
        outputs: Tensor,
        factors: list[Factors] | None,
        *,
        factor_bytes: int = 0,
        keep_bytes: int = sys.maxsize,
        chunk_bytes: int = DENSE_CHUNK_BYTES,
        progress: bool = True,
        shards: Shards | None = None,
    ) -> None:
        self.linearized = linearized
        self.inputs = inputs
        self.outputs = outputs
        self.factor_bytes = factor_bytes
        self.keep_bytes = keep_bytes
        self.chunk_bytes = chunk_bytes
        self.progress = progress
        self.shards = (shards or Shards.single()).with_rows(len(outputs))
        self._factors = None if factors is None else Factors.cat(factors)
        self._unit_gram: Tensor | None = None
        self._unit_ggn: Tensor | None = None
        self._kernel: ValueCache[Tensor] = ValueCache()

    @property
    def num_data(self) -> int:
        """N."""
        return self.outputs.shape[0]

    @property
    def num_outputs(self) -> int:
        """C."""
        return self.outputs.shape[1]

    @property
    def num_parameters(self) -> int:
        """P."""
        return self.linearized.num_parameters

    def per_weight(self, values: Tensor) -> Tensor:
        """One value per parameter tensor (L,) as one per weight (P,); values (P,) as they are."""
        if len(values) == self.num_parameters != self.linearized.num_parameter_tensors:
            return values
        sizes = [s.stop - s.start for s in self.linearized.parameter_slices]
        return values.repeat_interleave(torch.tensor(sizes, device=values.device))

    @property
    def factors_kept(self) -> bool:
        """Whether the factors of the whole Jacobian are in memory."""
        return self._factors is not None

    def factors(self) -> Factors:
        """Factors of the whole Jacobian, kept from now on."""
        if self._factors is None:
            batches = track(self.inputs, "linearising", total=len(self.inputs), show=self.progress)
            self._factors = Factors.cat([self.linearized.factors(x)[1] for x in batches])
        return self._factors

    def chunks(self) -> Iterator[tuple[slice, Factors]]:
        """The factors with the rows they are for, in order."""
        if self._factors is not None:
            yield slice(0, self.num_data), self._factors
            return
        start = 0
        for x in self.inputs:
            stop = start + num_rows(x)
            yield slice(start, stop), self.linearized.factors(x)[1]
            start = stop

    def release_factors(self) -> None:
        """Keep the factors no longer: each pass computes them again."""
        self._factors = None

    def pieces(self, max_rows: int) -> Iterator[tuple[slice, Factors]]:
        """`chunks` of at most `max_rows` rows."""
        for rows, factors in self.chunks():
            for start in range(0, factors.num_data, max_rows):
                piece = slice(start, min(start + max_rows, factors.num_data))
                place = slice(rows.start + piece.start, rows.start + piece.stop)
                yield place, factors.rows(piece)

    def factors_at(self, index: Tensor) -> Factors:
        """Factors of some rows, in that order; index (n,) of row numbers."""
        if self._factors is not None:
            return self._factors.rows(index)
        sorted_rows, order = index.cpu().sort()
        parts = [self.linearized.factors(x)[1] for x in inputs_of(self.inputs, sorted_rows)]
        return Factors.cat(parts).rows(order.argsort())

    def dense_chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Dense pieces of the Jacobian, (n x C x P), of at most `chunk_bytes` or one row."""
        row_bytes = self.num_outputs * self.num_parameters * self.outputs.element_size()
        for rows, factors in self.pieces(max(1, self.chunk_bytes // row_bytes)):
            yield rows, factors.jacobian()

    def matmul(self, v: Tensor) -> Tensor:
        """J v: (P x S) -> (N x C x S), differentiable in v."""
        return _Product.apply(v, self)

    def t_matmul(self, u: Tensor) -> Tensor:
        """Jᵀ u: (N x C x S) -> (P x S), differentiable in u."""
        return _TransposedProduct.apply(u, self)

    def unit_gram(self) -> Tensor:
        """J Jᵀ, (N·C x N·C), computed once."""
        if self._unit_gram is None:
            with torch.no_grad():
                self._unit_gram = gram(self.factors())
        return self._unit_gram

    def kernel(self, variances: Tensor, groups: Tensor | None = None) -> Tensor:
        """J Σ0 Jᵀ, (N·C x N·C), for one prior variance per parameter tensor (L,) or weight (P,).

        Differentiable in the variances when grad mode is on; without a graph, the last one is kept,
        since only R changes from one Newton step to the next. `groups` are as `gram` takes them.
        """
        if torch.is_grad_enabled() and variances.requires_grad:
            return gram(self.factors(), variances=variances, groups=groups)
        with torch.no_grad():
            return self._kernel.get((variances,), lambda: gram(self.factors(), variances=variances))

    def unit_ggn(self) -> Tensor:
        """Jᵀ J, (P x P), computed once."""
        if self._unit_ggn is None:
            with torch.no_grad():
                self._unit_ggn = self.ggn(None)
        return self._unit_ggn

    def ggn(self, curvature: Tensor | None) -> Tensor:
        """Jᵀ Λ J, (P x P), differentiable in Λ: symmetric Λ_n (N x C x C), or None for I."""
        return self.shards.sum(_WeightGram.apply(curvature, self))

    def row_blocks(self, matrix: Tensor) -> Tensor:
        """J_n S J_nᵀ for a symmetric S (P x P), (N x C x C), differentiable in S."""
        return _RowBlocks.apply(matrix, self)


class _Product(torch.autograd.Function):
    """J v; its adjoint is `_TransposedProduct`."""

    @staticmethod
    def forward(ctx, v: Tensor, training: TrainingJacobian) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.training = training
        # in place: pieces kept between large temporaries would fragment the heap
        out = v.new_empty(training.num_data, training.num_outputs, v.shape[-1])
        for rows, factors in training.chunks():
            out[rows] = factors.matmul(v)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return _TransposedProduct.apply(grad, ctx.training), None


class _TransposedProduct(torch.autograd.Function):
    """Jᵀ u; its adjoint is `_Product`."""

    @staticmethod
    def forward(ctx, u: Tensor, training: TrainingJacobian) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.training = training
        total = u.new_zeros(training.num_parameters, u.shape[-1])
        for rows, factors in training.chunks():
            total += factors.t_matmul(u[rows])
        return training.shards.sum(total)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return _Product.apply(grad, ctx.training), None


class _WeightGram(torch.autograd.Function):
    """Jᵀ Λ J of the rows of this process; its adjoint is `_RowBlocks`."""

    @staticmethod
    def forward(ctx, curvature: Tensor | None, training: TrainingJacobian) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.training = training
        total = WeightGram(training.num_parameters, training.chunk_bytes)
        chunks = track(training.chunks(), "accumulating Jᵀ J", show=training.progress)
        for rows, factors in chunks:
            total.add(factors, None if curvature is None else curvature[rows])
        return total.pop(like=training.outputs)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return _RowBlocks.apply(0.5 * (grad + grad.mT), ctx.training), None


class _RowBlocks(torch.autograd.Function):
    """J_n S J_nᵀ; its adjoint is `_WeightGram`."""

    @staticmethod
    def forward(ctx, matrix: Tensor, training: TrainingJacobian) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.training = training
        blocks = RowBlocks(matrix, training.chunk_bytes)
        out = matrix.new_empty(training.num_data, training.num_outputs, training.num_outputs)
        for rows, factors in training.chunks():
            out[rows] = blocks.of(factors)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return _WeightGram.apply(0.5 * (grad + grad.mT), ctx.training), None
