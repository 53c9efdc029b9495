"""Priors in which groups of weights share a precision."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping

import torch
from gpytorch.constraints import Interval
from torch import Tensor

from lingp.priors.base import Prior, WeightMean, as_precision, check_names


class Grouped(Prior):
    """θ_i ~ N(μ0_i, 1 / precision_g(i)): each weight belongs to one group of its parameter tensor.

    Subclasses say which, in `_axes`: the axes of a parameter tensor along which precisions differ.

    Parameters
    ----------
    precision
        One number for all groups to start from, a tensor (G,) with one per group, or a mapping from
        the name of each parameter tensor to a number or to one per group of it.
    mean
        μ0: a number, a flat (P,) tensor, or "network" for the network's own weights, see `Prior`.
    precision_constraint
        A GPyTorch constraint for `raw_precision`; positive through `exp` by default.

    Attributes
    ----------
    group
        The number of each weight's group, (P,), known after `bind`. Groups are numbered by
        parameter tensor, in the order of its entries.

    Notes
    -----
    `raw_precision` gets its final shape (G,) in `bind`. Before that, a single number stands for all
    groups to come.
    """

    def __init__(
        self,
        precision: float | Tensor | Mapping[str, float | Tensor] = 1.0,
        *,
        mean: WeightMean = 0.0,
        precision_constraint: Interval | None = None,
    ) -> None:
        super().__init__(mean)
        self._by_name: dict[str, int] | None = None  # how many values were given for each
        if isinstance(precision, Mapping):
            values = [as_precision(value).reshape(-1) for value in precision.values()]
            if not values:
                raise ValueError("precision: the mapping is empty")
            self._by_name = {n: len(v) for n, v in zip(precision, values, strict=True)}
            precision = torch.cat(values)
        self._register_precision(as_precision(precision).reshape(-1), precision_constraint)

    @abstractmethod
    def _axes(self, name: str, shape: torch.Size, inputs_first: bool) -> tuple[int, ...]:
        """Axes of a parameter tensor along which precisions differ, ascending."""

    @property
    def num_groups(self) -> int:
        """G, known after `bind`."""
        return sum(math.prod(shape) for shape in self._group_shapes())

    def named_precisions(self) -> dict[str, Tensor]:
        """The precisions of each parameter tensor's groups, in the shape of the axes they are of.

        Differentiable in the hyperparameters.
        """
        shapes = self._group_shapes()
        parts = self.precision.split([math.prod(shape) for shape in shapes])
        assert self.names is not None
        return {
            name: part.view(shape)
            for name, part, shape in zip(self.names, parts, shapes, strict=True)
        }

    def variances(self) -> Tensor:
        """1 / precision of each weight, (P,)."""
        self._group_shapes()
        assert self.group is not None
        return (1.0 / self.precision)[self.group]

    def _group_shapes(self) -> list[tuple[int, ...]]:
        self.num_parameter_tensors  # noqa: B018  raises when the prior isn't bound
        assert self.shapes is not None
        return [
            tuple(shape[axis] for axis in axes)
            for shape, axes in zip(self.shapes, self._all_axes, strict=True)
        ]

    def _check_tensors(self, names: tuple[str, ...], shapes: tuple[torch.Size, ...] | None) -> None:
        if shapes is None:
            raise ValueError(
                f"shapes: a {type(self).__name__} prior needs the shapes of the parameter tensors; "
                "call bind(names, shapes), or hand the prior to LinearizedGP or NTKernel"
            )
        if self._by_name is not None:
            check_names(self._by_name, names)

    def _on_bind(self, inputs_first: frozenset[str]) -> None:
        names, shapes = self.names or (), self.shapes or ()
        self._all_axes = [
            self._axes(name, shape, name in inputs_first)
            for name, shape in zip(names, shapes, strict=True)
        ]
        counts = [math.prod(shape) for shape in self._group_shapes()]
        try:
            raw = self._spread(counts)
        except ValueError:
            self.names = self.shapes = None
            raise
        device = self.raw_precision.device
        numbers = torch.arange(sum(counts), device=device).split(counts)
        self.group = torch.cat(
            [
                _along(number, shape, axes)
                for number, shape, axes in zip(numbers, shapes, self._all_axes, strict=True)
            ]
        )
        self.raw_precision = torch.nn.Parameter(raw, self.raw_precision.requires_grad)

    def _spread(self, counts: list[int]) -> Tensor:
        """`raw_precision` of all groups, (G,), from what was given."""
        raw, names = self.raw_precision.detach(), self.names or ()
        if self._by_name is None:
            if len(raw) not in (1, sum(counts)):
                raise ValueError(
                    f"precision: got {len(raw)} values for {sum(counts)} groups of weights; give "
                    "one number, or one per group"
                )
            return raw.expand(sum(counts)).clone()
        given = dict(zip(self._by_name, raw.split(list(self._by_name.values())), strict=True))
        for name, count in zip(names, counts, strict=True):
            if len(given[name]) not in (1, count):
                raise ValueError(
                    f"precision: got {len(given[name])} values for the {count} groups of {name}; "
                    "give one number, or one per group"
                )
        return torch.cat([given[n].expand(count) for n, count in zip(names, counts, strict=True)])


def _along(numbers: Tensor, shape: torch.Size, axes: tuple[int, ...]) -> Tensor:
    """Numbers that differ along some axes of a tensor, one per entry, flat."""
    kept = [size if axis in axes else 1 for axis, size in enumerate(shape)]
    return numbers.view(kept).expand(shape).reshape(-1)
