"""Jᵀ Λ J (P x P) and its adjoint, the blocks J_n S J_nᵀ (N x C x C).

Of two layers whose rows are outer products, J[(n, c), (o, i)] = g[n, c, o] a[n, i], outputs can be
summed over before anything has the size of the columns:

    (Jᵀ Λ J')[(o, i), (o', i')] = Σ_n [g_nᵀ Λ_n g'_n]_oo' [a_n a'_nᵀ]_ii'
    [J_n S J'_nᵀ]_cc'           = Σ_oo' g_nco g'_nc'o' Σ_ii' S[(o, i), (o', i')] [a_n a'_nᵀ]_ii'

Either is one matrix product over N rows, with C times fewer multiplications than one of columns;
a layer with itself, symmetric in (o, o') and in (i, i'), takes a quarter of them. Layers with
several positions, tables, and pairs too narrow for that are multiplied as columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lingp.linearization.blocks import Block, DenseBlock, OuterBlock, Slot
from lingp.linearization.factors import Factors
from lingp.operators.panels import add_product_

_PIECE_BYTES = 1 << 26
_WRITING = 16  # multiplications in the time that a number takes to be written and read again


class WeightGram:
    """Σ_n J_nᵀ Λ_n J_n, accumulated over batches of rows of one network.

    Parameters
    ----------
    num_parameters
        P.
    piece_bytes
        Memory of temporaries.
    """

    def __init__(self, num_parameters: int, piece_bytes: int = _PIECE_BYTES) -> None:
        self._size = num_parameters
        self._piece_bytes = piece_bytes
        self._sums: dict[_Pair, Tensor] = {}

    def add(self, factors: Factors, curvature: Tensor | None = None) -> None:
        """Add rows with their Λ_n (n x C x C), symmetric; None is the identity."""
        for rows, pairs in _pieces(factors, self._piece_bytes):
            for pair, left, right in pairs:
                if pair not in self._sums:
                    self._sums[pair] = left.g.new_zeros(pair.sum_shape)
                weights = None if curvature is None else curvature[rows]
                pair.add_gram_(self._sums[pair], left, right, weights)

    def pop(self, like: Tensor) -> Tensor:
        """The sum, (P x P), in the dtype and on the device of `like`; it starts again at 0."""
        total = like.new_zeros(self._size, self._size)
        while self._sums:
            pair, found = self._sums.popitem()
            block = pair.unfold(found)
            left, right = pair.left.columns(block), pair.right.columns(block)
            # added: of other batches the same layers may be in another form
            total[left.unsqueeze(1), right] += block
            if not pair.symmetric:
                total[right.unsqueeze(1), left] += block.mT
        return total


class RowBlocks:
    """J_n S J_nᵀ for batches of rows of one network.

    Parameters
    ----------
    matrix
        S, (P x P), symmetric.
    piece_bytes
        Memory of temporaries.
    """

    def __init__(self, matrix: Tensor, piece_bytes: int = _PIECE_BYTES) -> None:
        self._matrix = matrix
        self._piece_bytes = piece_bytes
        self._folded: dict[_Pair, Tensor] = {}

    def of(self, factors: Factors) -> Tensor:
        """J_n S J_nᵀ for these rows, (n x C x C)."""
        shape = factors.num_data, factors.num_outputs, factors.num_outputs
        out = self._matrix.new_zeros(shape)
        for rows, pairs in _pieces(factors, self._piece_bytes):
            for pair, left, right in pairs:
                if pair not in self._folded:
                    here = pair.left.columns(self._matrix).unsqueeze(1)
                    there = pair.right.columns(self._matrix)
                    self._folded[pair] = pair.fold(self._matrix[here, there])
                block = pair.blocks(self._folded[pair], left, right)
                out[rows] += block if pair.symmetric else block + block.mT
        return out


def row_flops(factors: Factors) -> float:
    """Flops of `WeightGram.add`, and of `RowBlocks.of`, for each row of such factors."""
    return sum(pair.row_flops for pair, _ in _pairs(factors))


@dataclass(frozen=True)
class _Layer:
    """The columns of one layer, (O, I) of them in that order.

    A bias is the weight of one more input, which is 1. Columns that are not outer products have
    I = 1, and `outer` is False where they are not to be taken as such.
    """

    slots: tuple[Slot, ...]
    fan_out: int
    fan_in: int
    input_major: bool
    outer: bool

    @classmethod
    def of(cls, block: Block) -> _Layer:
        slots = block.slots
        if isinstance(block, OuterBlock) and block.num_positions == 1:
            fan_in = block.fan_in + len(slots) - 1
            return cls(slots, block.fan_out, fan_in, block.input_major, True)
        size = sum(slot.size for slot in slots)
        return cls(slots, size, 1, False, isinstance(block, DenseBlock))

    @property
    def size(self) -> int:
        """How many columns."""
        return self.fan_out * self.fan_in

    def columns(self, like: Tensor) -> Tensor:
        """The numbers of the columns in J, (O·I,), on the device of `like`."""
        first, *biases = (
            torch.arange(slot.start, slot.stop, device=like.device) for slot in self.slots
        )
        if self.fan_out == sum(slot.size for slot in self.slots):
            return torch.cat([first, *biases])
        fan_in = self.fan_in - len(biases)
        if self.input_major:
            first = first.view(fan_in, self.fan_out).mT
        parts = [first.reshape(self.fan_out, fan_in), *(b.unsqueeze(1) for b in biases)]
        return torch.cat(parts, 1).flatten()


class _Rows:
    """Some rows of a layer's columns."""

    def __init__(self, layer: _Layer, block: Block) -> None:
        self.layer = layer
        self._block = block

    @cached_property
    def a(self) -> Tensor:
        """Inputs, (n x I)."""
        block = self._block
        if not isinstance(block, OuterBlock):
            return self.g.new_ones(len(self.g), 1)
        a = block.a.squeeze(1)
        return a if block.bias is None else torch.cat([a, a.new_ones(len(a), 1)], 1)

    @cached_property
    def g(self) -> Tensor:
        """Gradients in the outputs, (n x C x O)."""
        block = self._block
        if isinstance(block, OuterBlock) and self.layer.outer:
            return block.every_g().squeeze(2)
        return torch.cat([block.columns(slot) for slot in block.slots], -1)

    @cached_property
    def dense(self) -> Tensor:
        """The columns, (n x C x O·I)."""
        if isinstance(self._block, OuterBlock) and self.layer.outer:
            return (self.g.unsqueeze(-1) * self.a[:, None, None]).flatten(2)
        return self.g


@dataclass(frozen=True)
class _Pair:
    """Two layers, and how their columns are multiplied."""

    left: _Layer
    right: _Layer
    num_outputs: int

    @property
    def symmetric(self) -> bool:
        return self.left == self.right

    @cached_property
    def by_sums(self) -> bool:
        """Whether outputs are summed over first."""
        left, right, num_outputs = self.left, self.right, self.num_outputs
        if not (left.outer and right.outer):
            return False
        multiplied, written = left.size * right.size, self.temporaries
        columns = num_outputs * (multiplied + _WRITING * (left.size + right.size))
        if self.symmetric:
            return multiplied / 4 + _WRITING * written < columns / 2
        return multiplied + _WRITING * written < columns

    @property
    def row_flops(self) -> float:
        """Flops for a row; of the matrix one half is computed."""
        products = 2.0 * self.left.size * self.right.size
        if not self.by_sums:
            return self.num_outputs * products / (2 if self.symmetric else 1)
        return products / (4 if self.symmetric else 1)

    @property
    def temporaries(self) -> int:
        """Numbers written for one row when outputs are summed over first."""
        left, right = self.left, self.right
        return left.fan_out * right.fan_out + left.fan_in * right.fan_in

    @property
    def sum_shape(self) -> tuple[int, int]:
        left, right = self.left, self.right
        if not self.by_sums:
            return left.size, right.size
        if self.symmetric:
            return _triangle_size(left.fan_out), _triangle_size(left.fan_in)
        return left.fan_out * right.fan_out, left.fan_in * right.fan_in

    def add_gram_(self, total: Tensor, left: _Rows, right: _Rows, weights: Tensor | None) -> None:
        """Add Jᵀ Λ J' of some rows in the form of `sum_shape`."""
        if not self.by_sums:
            there = right.dense if weights is None else weights @ right.dense
            here, there = left.dense.flatten(0, 1), there.flatten(0, 1)
            add_product_(total, here.mT, there.mT, self.symmetric)
            return
        there = right.g if weights is None else weights @ right.g
        outer = (left.g.mT @ there).flatten(1)
        if self.symmetric:
            outer = outer[:, _triangle(self.left.fan_out, outer)]
        total.addmm_(outer.mT, self._inputs(left, right))

    def unfold(self, total: Tensor) -> Tensor:
        """The block of the matrix, (O·I x O'·I'), from the form that it is summed in."""
        left, right = self.left, self.right
        if not self.by_sums:
            return total.tril() + total.tril(-1).mT if self.symmetric else total
        if self.symmetric:
            outs, ins = _mirrored(left.fan_out, total), _mirrored(left.fan_in, total)
            total = total[outs][:, ins]
        shape = left.fan_out, right.fan_out, left.fan_in, right.fan_in
        return total.view(shape).transpose(1, 2).reshape(left.size, right.size)

    def fold(self, block: Tensor) -> Tensor:
        """A block of S as `blocks` takes it."""
        left, right = self.left, self.right
        if not self.by_sums:
            return block
        block = block.view(left.fan_out, left.fan_in, right.fan_out, right.fan_in)
        block = block.movedim(2, 1).reshape(left.fan_out * right.fan_out, -1)  # (O O', I I')
        if not self.symmetric:
            return block.mT.contiguous()
        block = block[_triangle(left.fan_out, block)].view(-1, left.fan_in, left.fan_in)
        # inputs (i, i') and (i', i) have the same product
        both = block + block.mT
        both.diagonal(dim1=1, dim2=2).mul_(0.5)
        return both.flatten(1)[:, _triangle(left.fan_in, block)].mT.contiguous()

    def blocks(self, folded: Tensor, left: _Rows, right: _Rows) -> Tensor:
        """J_n S J'_nᵀ, (n x C x C), from what `fold` gave."""
        if not self.by_sums:
            return (left.dense @ folded) @ right.dense.mT
        inner = self._inputs(left, right) @ folded
        if self.symmetric:
            inner = inner[:, _mirrored(self.left.fan_out, inner)]
        return left.g @ inner.view(-1, self.left.fan_out, self.right.fan_out) @ right.g.mT

    def _inputs(self, left: _Rows, right: _Rows) -> Tensor:
        """a_ni a'_ni', (n x I·I'), of one layer for i <= i' only."""
        if not self.symmetric:
            return (left.a.unsqueeze(2) * right.a.unsqueeze(1)).flatten(1)
        first, second = torch.triu_indices(self.left.fan_in, self.left.fan_in, device=left.a.device)
        return left.a[:, first] * left.a[:, second]


def _pieces(
    factors: Factors, piece_bytes: int
) -> Iterator[tuple[slice, list[tuple[_Pair, _Rows, _Rows]]]]:
    """Ranges of rows, and of each all pairs of layers."""
    pairs, num_outputs = _pairs(factors), factors.num_outputs
    written = [pair.temporaries for pair, _ in pairs if pair.by_sums]
    if not all(pair.by_sums for pair, _ in pairs):
        written.append(2 * num_outputs * factors.num_parameters)
    itemsize = torch.finfo(factors.dtype).bits // 8
    step = max(1, piece_bytes // (itemsize * max(written, default=1)))
    for start in range(0, factors.num_data, step):
        piece = slice(start, min(start + step, factors.num_data))
        rows = [_Rows(_Layer.of(block), block) for block in factors.rows(piece).blocks]
        yield piece, [(pair, rows[i], rows[j]) for pair, (i, j) in pairs]


def _pairs(factors: Factors) -> list[tuple[_Pair, tuple[int, int]]]:
    """All pairs of layers, with their numbers."""
    layers = [_Layer.of(block) for block in factors.blocks]
    return [
        (_Pair(layers[i], layers[j], factors.num_outputs), (i, j))
        for i in range(len(layers))
        for j in range(i + 1)
    ]


def _triangle_size(size: int) -> int:
    return size * (size + 1) // 2


def _triangle(size: int, like: Tensor) -> Tensor:
    """Places (i, j), i <= j, of a flattened (size x size) matrix."""
    first, second = torch.triu_indices(size, size, device=like.device)
    return first * size + second


def _mirrored(size: int, like: Tensor) -> Tensor:
    """For each place of a flattened symmetric matrix, the place in its upper triangle."""
    place = torch.zeros(size, size, dtype=torch.long, device=like.device)
    first, second = torch.triu_indices(size, size, device=like.device)
    place[first, second] = torch.arange(len(first), device=like.device)
    place[second, first] = place[first, second]
    return place.flatten()
