"""How the rows of the data are spread over processes, and what has to be communicated for it.

Each rank holds some rows of the data. Tensors with an axis over rows are local; all others
(weights, hyperparameters, sums over data) are replicated, the same on every rank. Four operations
lead from one kind to the other, two and two of them each other's adjoint:

    sum          x_r -> Σ_r x_r          local to replicated      adjoint: enter
    enter        x -> x                  replicated to local      adjoint: sum
    gather_rows  x_r -> [x_0; x_1; ..]   local to replicated      adjoint: own_rows
    own_rows     [x_0; x_1; ..] -> x_r   replicated to local      adjoint: gather_rows

A replicated number that is computed with these, such as the evidence, then has complete gradients
in replicated tensors, the same on every rank (Shoeybi et al., 2019, "Megatron-LM", section 3,
whose f is `enter` and whose g is `sum`). `torch.distributed.nn` has other adjoints: there every
rank has a loss of its own, and their sum is differentiated.

All ranks make the same calls in the same order, as in MPI.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


class OtherRankError(RuntimeError):
    """Another rank failed, and this one stops with it."""


@dataclass(frozen=True)
class Shards:
    """Which rows of the data this process holds: made by `single` or `of`.

    With `single`, one process that holds all rows, every operation gives back what it is given.

    Attributes
    ----------
    group
        The processes; None for one that is alone.
    rank
        Which of them this is.
    size
        How many there are.
    counts
        Rows on each rank, once `with_rows` has told.
    """

    group: ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    counts: tuple[int, ...] | None = None

    @classmethod
    def single(cls) -> Shards:
        """One process."""
        return cls()

    @classmethod
    def of(cls, process_group: ProcessGroup | None) -> Shards:
        """The processes of a group, e.g. `torch.distributed.group.WORLD`; None: `single`.

        Raises
        ------
        TypeError
            If it is no process group.
        ValueError
            If this process isn't in it.
        """
        if process_group is None:
            return cls.single()
        if not (dist.is_available() and isinstance(process_group, dist.ProcessGroup)):
            raise TypeError(
                "process_group: expected a torch.distributed.ProcessGroup, such as "
                "torch.distributed.group.WORLD after init_process_group(), or None; got "
                f"{type(process_group).__name__}"
            )
        rank = dist.get_rank(process_group)
        if rank < 0:
            raise ValueError(
                "process_group: this process is not in it; make the model only on its ranks"
            )
        return cls(process_group, rank, dist.get_world_size(process_group))

    @property
    def alone(self) -> bool:
        """Whether there is one process, and nothing to communicate."""
        return self.group is None

    def with_rows(self, num_rows: int) -> Shards:
        """These ranks, this one with so many rows.

        Raises
        ------
        ValueError
            If a rank has none, on all ranks.
        """
        counts = tuple(self.exchange(num_rows))
        empty = [rank for rank, count in enumerate(counts) if count == 0]
        if empty and not self.alone:
            raise ValueError(
                f"X: rank {empty[0]} of {self.size} has no rows; every rank needs at least one, so "
                "spread the data more evenly or start fewer processes"
            )
        return Shards(self.group, self.rank, self.size, counts)

    @property
    def rows(self) -> slice:
        """Where this rank's rows are among those of all ranks."""
        start = sum(self._counts()[: self.rank])
        return slice(start, start + self._counts()[self.rank])

    @property
    def num_rows(self) -> int:
        """Rows of all ranks."""
        return sum(self._counts())

    def sum(self, x: Tensor) -> Tensor:
        """Σ_r x_r: local terms of a sum to the sum, bit for bit the same on every rank."""
        return x if self.alone else _Sum.apply(x, self)

    def enter(self, x: Tensor) -> Tensor:
        """X itself, from here on used with local rows, so that its gradient is summed."""
        return x if self.alone else _Enter.apply(x, self)

    def mean(self, x: Tensor) -> Tensor:
        """The mean over ranks of what is the same on all of them: undoes `enter`."""
        return x if self.alone else self.sum(x) / self.size

    def gather_rows(self, x: Tensor) -> Tensor:
        """All ranks' rows in the order of ranks: (n x ...) -> (N x ...)."""
        return x if self.alone else _Gather.apply(x, self)

    def own_rows(self, x: Tensor) -> Tensor:
        """The rows this rank has: (N x ...) -> (n x ...)."""
        return x if self.alone else _Own.apply(x, self)

    def enter_parameters(self, module: M, device: torch.device) -> M:
        """The module as a copy for use with local rows: its parameters are `enter`ed, on `device`.

        Gradients of what is computed with the copy arrive in the module's own parameters.
        """
        if self.alone:
            return module
        # buffers are shared; deepcopy puts in place of an object what the memo has for it
        memo: dict[int, Any] = {id(buffer): buffer for buffer in module.buffers()}
        # on one device: its thread then runs all of a backward pass's communication, in order
        memo |= {id(p): self.enter(p.to(device)) for p in module.parameters()}
        return copy.deepcopy(module, memo)

    def fewer_rows(self, x: Tensor) -> Tensor:
        """A matrix with the same xᵀ x as all ranks' rows together, (n x q) -> (m x q).

        All rows where this process is alone, else triangular factors: for least squares. Without a
        graph.
        """
        if self.alone:
            return x
        triangle = torch.linalg.qr(x.detach(), mode="r").R  # (min(n, q), q)
        return self.with_rows(len(triangle)).gather_rows(triangle)

    def total(self, value: float) -> float:
        """Σ_r of a number."""
        return sum(self.exchange(value))

    def largest(self, value: float) -> float:
        """The largest of a number on all ranks."""
        return max(self.exchange(value))

    def smallest(self, value: float) -> float:
        """The smallest of a number on all ranks."""
        return min(self.exchange(value))

    def first(self, value: T) -> T:
        """What rank 0 gives."""
        return self.exchange(value)[0]

    def first_tensor(self, x: Tensor) -> Tensor:
        """The tensor of rank 0, for tensors of one shape; without a graph."""
        if self.alone:
            return x
        found = self._staged(x, copy=True)
        dist.broadcast(found, group=self.group, group_src=0)
        return found.to(x.device)

    def exchange(self, value: T) -> list[T]:
        """What each rank gives, any object that can be pickled, in the order of ranks."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def attempt(self, work: Callable[[], T]) -> T:
        """`work()`, which communicates nothing; where it raises on one rank, all ranks raise.

        Raises
        ------
        OtherRankError
            If `work` raised on another rank only.
        """
        if self.alone:
            return work()
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        said = self.exchange(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, message in enumerate(said):
            if message is not None:
                raise OtherRankError(f"rank {rank} of {self.size} failed: {message}")
        return result  # type: ignore[return-value]

    def check_agreement(self, facts: Mapping[str, object]) -> None:
        """Raise on all ranks unless all ranks state the same facts.

        Raises
        ------
        ValueError
            With the first name they disagree about, and what two of them have.
        """
        said = self.exchange(dict(facts))
        for rank, other in enumerate(said):
            for name in [*said[0], *other]:
                first, second = said[0].get(name), other.get(name)
                if first != second:
                    raise ValueError(
                        f"ranks disagree about {name}: rank 0 has {first}, rank {rank} has "
                        f"{second}; give every rank the same network, prior, likelihood and "
                        "options, and only the rows of the data shard by shard"
                    )

    def check_same(self, name: str, x: Tensor) -> None:
        """Raise on all ranks unless all have the same tensor, but for rounding.

        Raises
        ------
        ValueError
            If they don't.
        """
        first, *others = self.exchange(x.detach().cpu())
        near = torch.finfo(x.dtype).eps ** 0.5
        for rank, other in enumerate(others, 1):
            if first.shape != other.shape or not torch.allclose(other, first, rtol=near):
                raise ValueError(f"ranks disagree about {name}: rank {rank} has others than rank 0")

    def _counts(self) -> tuple[int, ...]:
        if self.counts is None:
            raise RuntimeError("the numbers of rows are not known yet: call with_rows first")
        return self.counts

    def _reduced(self, x: Tensor) -> Tensor:
        total = self._staged(x, copy=True)
        dist.all_reduce(total, group=self.group)
        return total.to(x.device)

    def _gathered(self, x: Tensor) -> Tensor:
        counts = self._counts()
        if len(x) != counts[self.rank]:
            raise ValueError(
                f"x: expected this rank's {counts[self.rank]} rows, got {len(x)}; with_rows tells "
                "of other numbers of rows"
            )
        padded = x.new_zeros(max(counts), *x.shape[1:])
        padded[: len(x)] = x
        padded = self._staged(padded)
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]).to(x)

    def _staged(self, x: Tensor, copy: bool = False) -> Tensor:
        """X, contiguous, on a device that the group's backends can take it from."""
        device = communication_device(x.device, dist.get_backend_config(self.group))
        return x.detach().to(device, copy=copy, memory_format=torch.contiguous_format)


def communication_device(device: torch.device, backends: str) -> torch.device:
    """Where tensors of a device are taken to be sent, e.g. for "cpu:gloo,cuda:nccl".

    gloo gathers on the CPU only, nccl takes nothing from there.
    """
    named = dict(pair.split(":", 1) for pair in backends.split(","))
    if device.type in named and named[device.type] != "gloo":
        return device
    return torch.device("cpu" if "gloo" in named.values() else "cuda")


def fingerprint(value: Tensor) -> str:
    """A few characters that are the same for the same values only."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:12]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards) -> Tensor:
        ctx.shards = shards
        return shards._reduced(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Enter.apply(grad, ctx.shards), None


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards) -> Tensor:
        ctx.shards = shards
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(grad, ctx.shards), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards) -> Tensor:
        ctx.shards = shards
        return shards._gathered(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Own.apply(grad, ctx.shards), None


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards) -> Tensor:
        ctx.shards = shards
        return x[shards.rows].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(grad, ctx.shards), None
