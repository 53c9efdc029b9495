"""The training data as inference sees it: outputs, targets and Jacobian factors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from lingp.inference.batches import cut_batches, inputs_of
from lingp.inference.cache import ValueCache
from lingp.linearization import Factors, LinearizedNetwork
from lingp.linearization.inputs import Inputs, num_rows
from lingp.operators import RowBlocks, WeightGram, gram
from lingp.runtime.progress import track
from lingp.runtime.shards import Shards

DENSE_CHUNK_BYTES = 1 << 27


class TrainingSet:
    """Outputs f(x_n; θ*), targets, weights and the Jacobian J (N·C x P), in batches.

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
    targets
        Of all batches, as the likelihood's `check_targets` gives them, first axis N.
    factors
        One per batch, or None to compute them whenever they are needed.
    weights
        How often each datum counts, (N,), finite and not negative; None: once each.
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
        targets: Tensor,
        factors: list[Factors] | None,
        *,
        weights: Tensor | None = None,
        factor_bytes: int = 0,
        keep_bytes: int = sys.maxsize,
        chunk_bytes: int = DENSE_CHUNK_BYTES,
        progress: bool = True,
        shards: Shards | None = None,
    ) -> None:
        self.linearized = linearized
        self.inputs = inputs
        self.outputs = outputs
        self.targets = targets
        self.weights = None if weights is None else _checked_weights(weights, outputs)
        self.factor_bytes = factor_bytes
        self.keep_bytes = keep_bytes
        self.chunk_bytes = chunk_bytes
        self.progress = progress
        self.shards = (shards or Shards.single()).with_rows(len(outputs))
        self._factors = None if factors is None else Factors.cat(factors)
        self._unit_gram: Tensor | None = None
        self._unit_ggn: Tensor | None = None
        self._kernel: ValueCache[Tensor] = ValueCache()

    @classmethod
    def collect(
        cls,
        linearized: LinearizedNetwork,
        batches: Iterable[tuple[Inputs, Tensor, Tensor | None]],
        *,
        keep_bytes: int,
        chunk_bytes: int = DENSE_CHUNK_BYTES,
        progress: bool = True,
        shards: Shards | None = None,
    ) -> TrainingSet:
        """Run the network over batches of (inputs, checked targets, weights or None).

        Factors are kept while they fit in `keep_bytes`. Batches whose factors would take more than
        `chunk_bytes` are cut. Where an error stops one of several processes, it stops all.
        """
        shards = shards or Shards.single()
        show = progress and shards.rank == 0
        own = shards.attempt(lambda: cls._own(linearized, batches, keep_bytes, chunk_bytes, show))
        own.shards = shards.with_rows(own.num_data)
        return own

    @classmethod
    def _own(
        cls,
        linearized: LinearizedNetwork,
        batches: Iterable[tuple[Inputs, Tensor, Tensor | None]],
        keep_bytes: int,
        chunk_bytes: int,
        progress: bool,
    ) -> TrainingSet:
        """The data of this process, for itself."""
        inputs, outputs, targets, weights = [], [], [], []
        factors: list[Factors] = []
        kept, rows, held = True, 0, 0
        pieces = cut_batches(linearized, batches, chunk_bytes)
        for x, y, w in track(pieces, "linearising", show=progress):
            if kept:
                f, batch_factors = linearized.factors(x)
                factors.append(batch_factors)
                rows, held = rows + len(y), held + batch_factors.nbytes
                # stacking them copies once, so at most half of the memory may be held
                if 2 * held > keep_bytes:
                    kept, factors = False, []
            else:
                f = linearized(x).detach()
            inputs.append(x)
            outputs.append(f)
            targets.append(y)
            weights.append(w)
        stacked = torch.cat(outputs)
        return cls(
            linearized,
            inputs,
            stacked,
            torch.cat(targets),
            factors if kept else None,
            weights=_cat_weights(weights, [len(f) for f in outputs], stacked),
            factor_bytes=held * len(stacked) // rows,
            keep_bytes=keep_bytes,
            chunk_bytes=chunk_bytes,
            progress=progress,
        )

    def extended(self, batches: Iterable[tuple[Inputs, Tensor, Tensor | None]]) -> TrainingSet:
        """These data and some more; nothing is computed again for the old ones.

        Parameters
        ----------
        batches
            As `collect` takes them. Factors of the new rows are kept if those of the old ones are.
        """
        new = TrainingSet.collect(
            self.linearized,
            batches,
            keep_bytes=self.keep_bytes - self.factor_bytes if self.factors_kept else 0,
            chunk_bytes=self.chunk_bytes,
            progress=self.progress,
            shards=self.shards,
        )
        kept = None
        if self._factors is not None and new._factors is not None:
            kept = [self._factors, new._factors]
        outputs = torch.cat([self.outputs, new.outputs])
        joined = TrainingSet(
            self.linearized,
            [*self.inputs, *new.inputs],
            outputs,
            torch.cat([self.targets, new.targets]),
            kept,
            weights=_cat_weights(
                [self.weights, new.weights], [self.num_data, new.num_data], outputs
            ),
            factor_bytes=self.factor_bytes + new.factor_bytes,
            keep_bytes=self.keep_bytes,
            chunk_bytes=self.chunk_bytes,
            progress=self.progress,
            shards=self.shards,
        )
        with torch.no_grad():
            if self._unit_gram is not None and kept is not None:
                cross = gram(new.factors(), self.factors())
                upper = torch.cat([self._unit_gram, cross.mT], 1)
                joined._unit_gram = torch.cat([upper, torch.cat([cross, new.unit_gram()], 1)])
            if self._unit_ggn is not None:
                joined._unit_ggn = self._unit_ggn + new.unit_ggn()
        return joined

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

    def subset(self, index: Tensor, shards: Shards | None = None) -> TrainingSet:
        """Some of the data of this process; nothing is computed again, and J Jᵀ is kept.

        Parameters
        ----------
        index
            Row numbers, ascending, without repetition, (n,).
        shards
            How these rows are spread over processes; by default this one has them for itself.
        """
        index = index.to(self.outputs.device)
        chosen = TrainingSet(
            self.linearized,
            list(inputs_of(self.inputs, index.cpu())),
            self.outputs[index],
            self.targets[index],
            None if self._factors is None else [self._factors.rows(index)],
            weights=None if self.weights is None else self.weights[index],
            factor_bytes=self.factor_bytes * len(index) // self.num_data,
            keep_bytes=self.keep_bytes,
            chunk_bytes=self.chunk_bytes,
            progress=self.progress,
            shards=shards,
        )
        if self._unit_gram is not None:
            shape = (self.num_data, self.num_outputs) * 2
            blocks = self._unit_gram.view(shape)[index][:, :, index]
            chosen._unit_gram = blocks.reshape(chosen.outputs.numel(), -1)
        return chosen

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


def _checked_weights(weights: Tensor, outputs: Tensor) -> Tensor:
    """Weights in the dtype and on the device of the outputs."""
    if weights.shape != outputs.shape[:1]:
        raise ValueError(
            f"weights: expected one per datum, ({len(outputs)},), got {tuple(weights.shape)}"
        )
    if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
        raise ValueError(
            "weights: expected finite numbers >= 0, got some that are negative, NaN or infinite"
        )
    return weights.to(outputs)


def _cat_weights(
    parts: Sequence[Tensor | None], sizes: Sequence[int], outputs: Tensor
) -> Tensor | None:
    """The weights of several batches, 1 where a batch has none; None if no batch has any."""
    if all(part is None for part in parts):
        return None
    return torch.cat(
        [
            outputs.new_ones(size) if part is None else part.to(outputs)
            for part, size in zip(parts, sizes, strict=True)
        ]
    )


class _Product(torch.autograd.Function):
    """J v; its adjoint is `_TransposedProduct`."""

    @staticmethod
    def forward(ctx, v: Tensor, training: TrainingSet) -> Tensor:  # type: ignore[no-untyped-def]
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
    def forward(ctx, u: Tensor, training: TrainingSet) -> Tensor:  # type: ignore[no-untyped-def]
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
    def forward(ctx, curvature: Tensor | None, training: TrainingSet) -> Tensor:  # type: ignore[no-untyped-def]
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
    def forward(ctx, matrix: Tensor, training: TrainingSet) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.training = training
        blocks = RowBlocks(matrix, training.chunk_bytes)
        out = matrix.new_empty(training.num_data, training.num_outputs, training.num_outputs)
        for rows, factors in training.chunks():
            out[rows] = blocks.of(factors)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return _WeightGram.apply(0.5 * (grad + grad.mT), ctx.training), None
