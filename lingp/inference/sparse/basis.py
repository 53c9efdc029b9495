"""The features of inducing points at the data: Ψ(x) = K(x, Z) L⁻ᵀ with L Lᵀ = K(Z, Z).

    Ψ(x) = J(x) Σ0^{1/2} Q,     Q = Σ0^{1/2} J_Zᵀ L⁻ᵀ  (P x m), orthonormal columns

so Ψ is the whitened Jacobian seen in the span of its rows at Z. It is made block by block, one pass
over the data each time; blocks are kept from the second pass on, if memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lingp.inference.origin import Origin
from lingp.inference.sparse.accumulation import Accumulation
from lingp.inference.sparse.inducing import InducingPoints
from lingp.inference.sparse.streamed_products import streamed_matmul, streamed_t_matmul
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot, UniformRoot
from lingp.linalg.psd import lower_root
from lingp.linalg.streaming import streamed_gram
from lingp.linearization import Factors
from lingp.operators import diagonal_blocks
from lingp.runtime.progress import track


class Basis:
    """Ψ at the training data, and the sums over data that a posterior is made of.

    Parameters
    ----------
    training
        The training data.
    points
        Z.
    variances
        Prior variance of each parameter tensor (L,) or weight (P,); results are differentiable in
        them if they have a graph.
    keep_bytes
        Memory that blocks of Ψ may take to be kept.
    groups
        Which weights have the same variance, as `lingp.operators.gram` takes it.
    """

    def __init__(
        self,
        training: TrainingSet,
        points: InducingPoints,
        variances: Tensor,
        keep_bytes: float,
        groups: Tensor | None = None,
    ) -> None:
        self.training = training
        self.points = points
        self.variances = variances
        self.keep_bytes = keep_bytes
        self.groups = groups
        # points that say the same make K(Z, Z) singular; with more on its diagonal, Ψ Ψᵀ is smaller
        self.factor = lower_root(points.kernel(variances, groups))  # L
        self._kept: list[tuple[slice, Tensor]] | None = None
        self._num_passes = 0
        self._diagonal: Tensor | None = None
        self._sums = Accumulation(self._sum_over)

    def carried_over(self, training: TrainingSet, origin: Origin) -> Basis:
        """The same for a changed training set; sums over the rows that are left go along."""
        moved = Basis(training, self.points, self.variances, self.keep_bytes)
        moved._sums = self._sums.carried_over(origin, moved._sum_over)
        return moved

    @property
    def rank(self) -> int:
        """Dimension of the span of the inducing points, copies left out."""
        pivots = self.factor.detach().diagonal().square()
        return int((pivots > 100 * torch.finfo(pivots.dtype).eps * pivots.sum()).sum())

    def detach(self) -> Basis:
        """The same without a graph."""
        if not self.variances.requires_grad:
            return self
        with torch.no_grad():
            return Basis(self.training, self.points, self.variances.detach(), self.keep_bytes)

    def block(self, factors: Factors) -> Tensor:
        """Ψ at any inputs, (n x C x m)."""
        flat = self._rows_at(factors, self.variances, self.factor)
        return flat.unflatten(0, (factors.num_data, factors.num_outputs))

    def gram(self, root: CurvatureRoot) -> Tensor:
        """Ψᵀ Λ Ψ, (m x m), differentiable in R."""
        if isinstance(root, UniformRoot):
            one = UniformRoot(torch.ones_like(root.scale), root.num_data, root.num_outputs)
            return self.training.shards.mean(root.scale).square() * self._gram(one)
        return self._gram(root)

    def diagonal(self) -> Tensor:
        """The diagonal blocks K(x_n, x_n), (N x C x C), without a graph."""
        if self._diagonal is None:
            for _ in self.pieces():  # a pass gives them as well
                pass
        assert self._diagonal is not None
        return self._diagonal

    def trace(self, root: CurvatureRoot) -> Tensor:
        """tr Λ K, 0-d, differentiable in R and in the variances."""
        shards = self.training.shards
        if not self._has_graph():
            return shards.sum(_traces(root, self.diagonal()).sum())
        # linear in the variances, a tensor's or a weight's share of it each
        shares = torch.zeros_like(self.variances)
        diagonals: list[Tensor] = []
        for rows, factors in self.training.pieces(self._rows_per_piece()):
            leaf = self.variances.detach().clone().requires_grad_()
            with torch.enable_grad():
                blocks = diagonal_blocks(factors, leaf)
                part = _traces(root.rows(rows).detach(), blocks).sum()
            shares += torch.autograd.grad(part, leaf)[0]
            diagonals.append(blocks.detach())
        if self._diagonal is None:
            self._diagonal = torch.cat(diagonals)
        total = shards.sum(_traces(root, self._diagonal).sum())
        return total + (self.variances - self.variances.detach()) @ shards.sum(shares)

    def matmul(self, e: Tensor) -> Tensor:
        """Ψ e: (m x S) -> (N x C x S), differentiable in e."""
        size = self.training.outputs.numel()
        flat = streamed_matmul(self._rows, size, self.training.shards.enter(e), *self._entered())
        return flat.unflatten(0, (self.training.num_data, self.training.num_outputs))

    def t_matmul(self, u: Tensor) -> Tensor:
        """Ψᵀ u: (N x C x S) -> (m x S), differentiable in u."""
        own = streamed_t_matmul(self._rows, u.flatten(0, 1), *self._entered())
        return self.training.shards.sum(own)

    def weighted_rows(
        self, root: CurvatureRoot, variances: Tensor, factor: Tensor
    ) -> Iterator[Tensor]:
        """Blocks of rows of Rᵀ Ψ, as a function of what they depend on."""
        start = 0
        for block in self._rows(variances, factor):
            stop = start + len(block) // root.num_outputs
            part = block.unflatten(0, (stop - start, root.num_outputs))
            yield root.rows(slice(start, stop)).t_apply(part).flatten(0, 1)
            start = stop

    def pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """Ψ at some rows after the other, (n x C x m), without a graph."""
        if self._kept is not None:
            yield from self._kept
            return
        training = self.training
        size = training.outputs.numel() * self.points.num_points * training.outputs.element_size()
        keeping = self._num_passes > 0 and size <= self.keep_bytes
        kept: list[tuple[slice, Tensor]] = []
        diagonals: list[Tensor] = []
        for rows, factors in self._progress(training):
            with torch.no_grad():
                block = self.block(factors)
                if self._diagonal is None:
                    diagonals.append(diagonal_blocks(factors, self.variances))
            if keeping:
                kept.append((rows, block))
            yield rows, block
        self._num_passes += 1
        if self._diagonal is None:
            self._diagonal = torch.cat(diagonals)
        if keeping:
            self._kept = kept

    def _entered(self) -> tuple[Tensor, Tensor]:
        """The variances and L, for use with this process's rows."""
        enter = self.training.shards.enter
        return enter(self.variances), enter(self.factor)

    def _gram(self, root: CurvatureRoot) -> Tensor:
        tensors, shards = root.tensors(), self.training.shards
        if not (self._has_graph() or (torch.is_grad_enabled() and _needs_grad(*tensors))):
            with torch.no_grad():
                return shards.sum(self._sums.get(self.training, root))

        def rows(variances: Tensor, factor: Tensor, *values: Tensor) -> Iterator[Tensor]:
            return self.weighted_rows(root.with_tensors(*values), variances, factor)

        return shards.sum(streamed_gram(rows, self._zeros(), *self._entered(), *tensors))

    def _sum_over(self, training: TrainingSet, root: CurvatureRoot) -> Tensor:
        """Ψᵀ Λ Ψ over these data of this process, which need not be the training data."""

        def rows() -> Iterator[Tensor]:
            if training is self.training:
                for here, block in self.pieces():
                    yield root.rows(here).t_apply(block).flatten(0, 1)
            else:
                for here, factors in self._progress(training):
                    yield root.rows(here).t_apply(self.block(factors)).flatten(0, 1)

        return streamed_gram(rows, self._zeros())

    def _rows(self, variances: Tensor, factor: Tensor) -> Iterator[Tensor]:
        """Ψ at some rows after the other, (n·C x m), as a function of what it depends on."""
        if not _needs_grad(variances, factor):
            for _, block in self.pieces():
                yield block.flatten(0, 1)
        else:
            for _, factors in self._progress(self.training):
                yield self._rows_at(factors, variances, factor)

    def _rows_at(self, factors: Factors, variances: Tensor, factor: Tensor) -> Tensor:
        cross = self.points.cross(factors, variances, self.groups)  # (n·C, m)
        return torch.linalg.solve_triangular(factor, cross.mT, upper=False).mT

    def _progress(self, training: TrainingSet) -> Iterator[tuple[slice, Factors]]:
        pieces = training.pieces(self._rows_per_piece())
        return track(pieces, "inducing features", show=training.progress)

    def _rows_per_piece(self) -> int:
        training = self.training
        row = training.num_outputs * self.points.num_points * training.outputs.element_size()
        return max(1, training.chunk_bytes // (4 * row))

    def _zeros(self) -> Tensor:
        size = self.points.num_points
        return self.factor.new_zeros(size, size)

    def _has_graph(self) -> bool:
        return torch.is_grad_enabled() and self.variances.requires_grad


def _traces(root: CurvatureRoot, blocks: Tensor) -> Tensor:
    """tr R_nᵀ K_nn R_n of every datum, (N,)."""
    half = root.t_apply(blocks)  # (N, K, C)
    return root.t_apply(half.mT).diagonal(dim1=1, dim2=2).sum(-1)


def _needs_grad(*tensors: Tensor) -> bool:
    return any(t.requires_grad for t in tensors)
