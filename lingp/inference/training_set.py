"""The training data as inference sees it: outputs, targets and Jacobian factors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from lingp.inference.progress import track
from lingp.inference.streaming import streamed_gram
from lingp.linearization import Factors, LinearizedNetwork
from lingp.linearization.inputs import Inputs, num_rows
from lingp.operators import gram

DENSE_CHUNK_BYTES = 1 << 27


class TrainingSet:
    """Outputs f(x_n; θ*), targets and the Jacobian J (N·C x P), in batches.

    The factors of J are kept where memory allows; else each pass over J computes them again. What
    doesn't depend on hyperparameters is computed once: `unit_gram` J Jᵀ and `unit_ggn` Jᵀ J.

    Parameters
    ----------
    linearized
        The network.
    inputs
        Batches of inputs; may be empty where factors are given.
    outputs, targets
        Of all batches, (N x C).
    factors
        One per batch, or None to compute them whenever they are needed.
    factor_bytes
        Memory that the factors of all batches take together.
    chunk_bytes
        Memory for dense pieces of the Jacobian.
    progress
        Whether long passes show a progress bar.
    """

    def __init__(
        self,
        linearized: LinearizedNetwork,
        inputs: list[Inputs],
        outputs: Tensor,
        targets: Tensor,
        factors: list[Factors] | None,
        *,
        factor_bytes: int = 0,
        chunk_bytes: int = DENSE_CHUNK_BYTES,
        progress: bool = True,
    ) -> None:
        self.linearized = linearized
        self.inputs = inputs
        self.outputs = outputs
        self.targets = targets
        self.factor_bytes = factor_bytes
        self.chunk_bytes = chunk_bytes
        self.progress = progress
        self._factors = None if factors is None else Factors.cat(factors)
        self._unit_gram: Tensor | None = None
        self._unit_ggn: Tensor | None = None

    @classmethod
    def collect(
        cls,
        linearized: LinearizedNetwork,
        batches: Iterable[tuple[Inputs, Tensor]],
        *,
        keep_bytes: int,
        chunk_bytes: int = DENSE_CHUNK_BYTES,
        progress: bool = True,
    ) -> TrainingSet:
        """Run the network over batches of (inputs, targets), targets flat (n x C) already.

        Factors are kept while they fit in `keep_bytes`.
        """
        inputs, outputs, targets, kept, rows, held = [], [], [], True, 0, 0
        factors: list[Factors] = []
        for x, y in track(batches, "linearising", show=progress):
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
        num_data = sum(len(y) for y in targets)
        return cls(
            linearized,
            [] if kept else inputs,
            torch.cat(outputs),
            torch.cat(targets),
            factors if kept else None,
            factor_bytes=held * num_data // rows,
            chunk_bytes=chunk_bytes,
            progress=progress,
        )

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
        """One value per parameter tensor (L,) as one per weight (P,)."""
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

    def dense_chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Dense pieces of the Jacobian, (n x C x P), of at most `chunk_bytes` or one row."""
        row_bytes = self.num_outputs * self.num_parameters * self.outputs.element_size()
        size = max(1, self.chunk_bytes // row_bytes)
        for rows, factors in self.chunks():
            for start in range(0, factors.num_data, size):
                piece = slice(start, min(start + size, factors.num_data))
                yield (
                    slice(rows.start + piece.start, rows.start + piece.stop),
                    factors.rows(piece).jacobian(),
                )

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

    def unit_ggn(self) -> Tensor:
        """Jᵀ J, (P x P), computed once."""
        if self._unit_ggn is None:
            with torch.no_grad():
                self._unit_ggn = streamed_gram(
                    lambda: (jacobian.flatten(0, 1) for _, jacobian in self.tracked_dense_chunks()),
                    self.outputs.new_zeros(self.num_parameters, self.num_parameters),
                )
        return self._unit_ggn

    def tracked_dense_chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """`dense_chunks` under a progress bar."""
        return track(self.dense_chunks(), "accumulating Jᵀ J", show=self.progress)


class _Product(torch.autograd.Function):
    """J v; its adjoint is `_TransposedProduct`."""

    @staticmethod
    def forward(ctx, v: Tensor, training: TrainingSet) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.training = training
        return torch.cat([factors.matmul(v) for _, factors in training.chunks()])

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
        return total

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return _Product.apply(grad, ctx.training), None
