"""Jacobian blocks: the columns of the Jacobian that belong to one layer, kept as factors.

For a weight W with inputs a and pre-activation gradients g, example n, output c, position s,

    J[(n, c), (o, i)] = Σ_s g[n, c, s, o] a[n, s, i]

so a layer's columns are known from `a` and `g`, which are smaller than the columns themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from typing_extensions import Self

from lingp.runtime.plain import storable

# Products work through rows in pieces of about this many scalars, so that what is written by one
# matrix product is still in the processor's cache when the next reads it.
_CACHE_SCALARS = 1 << 20


@storable
@dataclass(frozen=True)
class Slot:
    """Columns `start:stop` of the Jacobian, which belong to parameter tensor `parameter`."""

    parameter: int
    start: int
    stop: int

    @property
    def columns(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def size(self) -> int:
        return self.stop - self.start


class Block(ABC):
    """Some columns of the Jacobian, as a frozen dataclass.

    Its first tensor is (N, ...), its last (N, C, ...). Methods that end in `_` add to their first
    argument.
    """

    @property
    def num_data(self) -> int:
        return self.tensors()[0].shape[0]

    @property
    def num_outputs(self) -> int:
        return self.tensors()[-1].shape[1]

    @property
    @abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The columns, those of a weight before those of its bias."""

    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors, which are the dataclass's first fields."""

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """The same over other tensors (converted, detached, moved)."""
        names = (field.name for field in fields(self))  # type: ignore[arg-type]
        return replace(self, **dict(zip(names, tensors, strict=False)))  # type: ignore[type-var]

    def rows(self, index: slice | Tensor) -> Self:
        """The same columns at some of the examples."""
        return self.with_tensors([t[index] for t in self.tensors()])

    @abstractmethod
    def columns(self, slot: Slot) -> Tensor:
        """The dense columns of `slot`, (N, C, size)."""

    @abstractmethod
    def add_matmul_(self, out: Tensor, v: Tensor) -> None:
        """`out += J v` with v (P, K), out (N, C, K)."""

    @abstractmethod
    def add_t_matmul_(self, out: Tensor, u: Tensor) -> None:
        """`out += Jᵀ u` with u (N, C, K), out (P, K)."""

    def diagonal_blocks(self, slot: Slot) -> Tensor:
        """J_n J_nᵀ over the columns of `slot`, for every n: (N, C, C)."""
        rows = self.columns(slot)
        return rows @ rows.mT


@storable
@dataclass(frozen=True)
class DenseBlock(Block):
    """Columns of one parameter tensor, written out: `jacobian` is (N, C, size)."""

    jacobian: Tensor
    slot: Slot

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (self.slot,)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.jacobian,)

    def columns(self, slot: Slot) -> Tensor:
        return self.jacobian

    def add_matmul_(self, out: Tensor, v: Tensor) -> None:
        out += self.jacobian @ v[self.slot.columns]

    def add_t_matmul_(self, out: Tensor, u: Tensor) -> None:
        out[self.slot.columns].addmm_(self.jacobian.flatten(0, 1).mT, u.flatten(0, 1))


@storable
@dataclass(frozen=True)
class OuterBlock(Block):
    """Weight (and bias) columns of a layer as outer products of `a` and `g`.

    Parameters
    ----------
    a : (N, S, I) layer inputs, S positions.
    g : (N, C, S, O) gradients of the outputs in the layer's pre-activations, or (1, C, S, O) when
        they are the same for every example (the last layer of most networks).
    weight : columns of the weight, ordered (O, I), or (I, O) when `input_major`.
    bias : columns of a bias of size O that the layer adds, if it has one.
    """

    a: Tensor
    g: Tensor
    weight: Slot
    bias: Slot | None = None
    input_major: bool = False

    @property
    def num_positions(self) -> int:
        return self.a.shape[1]

    @property
    def fan_in(self) -> int:
        return self.a.shape[2]

    @property
    def fan_out(self) -> int:
        return self.g.shape[3]

    @property
    def shared(self) -> bool:
        """Whether every example has the same `g`."""
        return self.g.shape[0] == 1 and self.num_data > 1

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.a, self.g)

    def rows(self, index: slice | Tensor) -> OuterBlock:
        return replace(self, a=self.a[index], g=self.g if self.shared else self.g[index])

    def every_g(self) -> Tensor:
        """`g` for every example, (N, C, S, O), as a view."""
        return self.g.expand(self.num_data, -1, -1, -1)

    def matrix(self, values: Tensor) -> Tensor:
        """The entries of the weight among those of all weights (P,), as a view (O, I)."""
        own = values[self.weight.columns]
        if self.input_major:
            return own.view(self.fan_in, self.fan_out).T
        return own.view(self.fan_out, self.fan_in)

    def weight_columns(self, outputs: slice = slice(None)) -> Tensor:
        """Columns of weight rows `outputs`: (N, C, O, I), or (N, C, I, O) if `input_major`."""
        g = self.every_g()[..., outputs]  # (N, C, S, o)
        if self.input_major:
            return self.a.mT.unsqueeze(1) @ g
        if self.num_positions == 1:
            return g.mT * self.a.unsqueeze(1)
        left = g.mT.flatten(1, 2)  # (N, C o, S)
        return (left @ self.a).view(self.num_data, self.num_outputs, -1, self.fan_in)

    def columns(self, slot: Slot) -> Tensor:
        if slot == self.weight:
            return self.weight_columns().flatten(2)
        return self.every_g().sum(2)

    def _row_pieces(self, width: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Ranges of examples whose intermediate products stay in cache, with their `a` and `g`."""
        per_row = max(1, self.num_positions * self.fan_out * width)
        step = max(_CACHE_SCALARS // per_row, 64)
        for start in range(0, self.num_data, step):
            rows = slice(start, min(start + step, self.num_data))
            yield rows, self.a[rows], self.every_g()[rows].flatten(2)

    def add_matmul_(self, out: Tensor, v: Tensor) -> None:
        width, fan_in, fan_out = v.shape[1], self.fan_in, self.fan_out
        matrix = v[self.weight.columns]
        if self.input_major:
            matrix = matrix.reshape(fan_in, fan_out * width)
        else:
            matrix = matrix.reshape(fan_out, fan_in, width).transpose(0, 1).reshape(fan_in, -1)
        for rows, a, g in self._row_pieces(width):
            t = a.reshape(-1, fan_in) @ matrix  # (n S, O K)
            out[rows] += g @ t.view(len(g), -1, width)
        if self.bias is not None:
            out += self.columns(self.bias) @ v[self.bias.columns]

    def add_t_matmul_(self, out: Tensor, u: Tensor) -> None:
        width, fan_in, fan_out = u.shape[2], self.fan_in, self.fan_out
        total = out.new_zeros(fan_in, fan_out * width)
        for rows, a, g in self._row_pieces(width):
            z = (g.mT @ u[rows]).view(-1, fan_out * width)  # (n S, O K)
            total.addmm_(a.reshape(-1, fan_in).mT, z)
        total = total.view(fan_in, fan_out, width)
        if not self.input_major:
            total = total.transpose(0, 1)
        out[self.weight.columns] += total.reshape(-1, width)
        if self.bias is not None:
            out[self.bias.columns].addmm_(self.columns(self.bias).flatten(0, 1).mT, u.flatten(0, 1))

    def diagonal_blocks(self, slot: Slot) -> Tensor:
        if slot != self.weight:
            return super().diagonal_blocks(slot)
        g = self.g
        if self.num_positions == 1:
            g = g.squeeze(2)
            return self.a.square().sum(-1, keepdim=True) * (g @ g.mT)
        positions, fan_in, fan_out = self.num_positions, self.fan_in, self.fan_out
        if positions * (fan_in + self.num_outputs * fan_out) < fan_in * fan_out * self.num_outputs:
            # Σ_s' (a_s·a_s') g_s' first: S x S inner products per example, never the columns
            inner = (self.a @ self.a.mT).unsqueeze(1)  # (N, 1, S, S)
            mixed = (inner @ g).flatten(2)  # (N, C, S O)
            return g.flatten(2) @ mixed.mT
        return super().diagonal_blocks(slot)


@storable
@dataclass(frozen=True)
class LookupBlock(Block):
    """Columns of a table (V, O) of which each position reads one row: an embedding.

    Parameters
    ----------
    index : (N, S) rows read.
    scale : (N, S) factor on each row read (0 where nothing is read).
    g : (N, C, S, O) gradients of the outputs in what was read.
    """

    index: Tensor
    scale: Tensor
    g: Tensor
    weight: Slot

    @property
    def fan_out(self) -> int:
        return self.g.shape[3]

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (self.weight,)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.index, self.scale, self.g)

    def scaled_g(self) -> Tensor:
        """g times scale, (N, C, S, O)."""
        return self.g * self.scale[:, None, :, None]

    def compressed(self, table_rows: Tensor) -> Tensor:
        """Dense columns of the given table rows (sorted), (N, C, len(table_rows) · O)."""
        place = torch.searchsorted(table_rows, self.index.contiguous()).clamp(
            max=len(table_rows) - 1
        )
        wanted = (table_rows[place] == self.index).to(self.g.dtype)  # (N, S)
        g = self.scaled_g() * wanted[:, None, :, None]
        out = g.new_zeros(self.num_data, self.num_outputs, len(table_rows), self.fan_out)
        where = place[:, None, :, None].expand_as(g)
        return out.scatter_add(2, where, g).flatten(2)

    def columns(self, slot: Slot) -> Tensor:
        rows = torch.arange(self.weight.size // self.fan_out, device=self.index.device)
        return self.compressed(rows)

    def add_matmul_(self, out: Tensor, v: Tensor) -> None:
        table = v[self.weight.columns].view(-1, self.fan_out, v.shape[1])
        g = self.scaled_g()  # (N, C, S, O)
        read = table[self.index]  # (N, S, O, K)
        out += g.flatten(2) @ read.flatten(1, 2)

    def add_t_matmul_(self, out: Tensor, u: Tensor) -> None:
        g = self.scaled_g().flatten(2)  # (N, C, S O)
        z = (g.mT @ u).view(-1, self.fan_out * u.shape[2])  # (N S, O K)
        table = out[self.weight.columns].view(-1, self.fan_out * u.shape[2])
        table.index_add_(0, self.index.reshape(-1), z)

    def diagonal_blocks(self, slot: Slot) -> Tensor:
        same = (self.index[:, :, None] == self.index[:, None, :]).to(self.g.dtype)
        g = self.scaled_g()
        mixed = (same.unsqueeze(1) @ g).flatten(2)
        return g.flatten(2) @ mixed.mT
