"""Parameters added to or multiplied with the examples: h = w ∘ z + b, with z free of them.

Normalisation layers are such operations. Scales, shifts and learned positions are usually written
x + p or p ∘ x rather than as a layer, and learned tokens are repeated for every example. The
Jacobian of w is g ∘ z, that of b is g, summed over the axes along which they are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lingp.linearization.rules.base import IN_PLACE, Dense, Operation, Piece, present, rule_for

IN_PLACE.update(
    {
        Tensor.add_: torch.add,
        Tensor.__iadd__: torch.add,
        Tensor.sub_: torch.sub,
        Tensor.__isub__: torch.sub,
        Tensor.mul_: torch.mul,
        Tensor.__imul__: torch.mul,
        Tensor.div_: torch.div,
        Tensor.__itruediv__: torch.div,
    }
)


def _broadcast_sum(g: Tensor, operation: Operation) -> Tensor:
    """Sum g (C, B, *space) over the axes along which the parameter is repeated."""
    shape = operation.parameters["parameter"].shape
    padded = [1] * (g.dim() - 1 - len(shape)) + list(shape)
    del padded[operation.axis]  # the examples', along which it is repeated too
    axes = [d for d, size in enumerate(padded, 2) if size == 1 and g.shape[d] != 1]
    g = g.sum(axes, keepdim=True) if axes else g
    return g.reshape(*g.shape[:2], *shape)


def _is_parameter(t: object) -> bool:
    return isinstance(t, Tensor) and isinstance(t if t._base is None else t._base, nn.Parameter)


def _bind(first: object, second: object) -> Operation | None:
    """x and p, in whichever order they come."""
    parameter, x = (first, second) if _is_parameter(first) else (second, first)
    if not (isinstance(x, Tensor) and isinstance(parameter, Tensor)):
        return None
    extra = x.dim() - parameter.dim()
    if extra < 0:
        return None
    repeated = [d for d, size in enumerate(parameter.shape, extra) if size == 1]
    return Operation(x, {"parameter": parameter}, axes=(*range(extra), *repeated))


@rule_for(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
class SumRule:
    """h = x + p: ∂f/∂p = g, summed over the axes along which p is repeated."""

    def bind(self, input: object, other: object, *, alpha: float = 1) -> Operation | None:
        return _bind(input, other) if alpha == 1 else None

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        return {"parameter": Dense(_broadcast_sum(g, operation))}


@rule_for(torch.sub, Tensor.sub, Tensor.__sub__)
class DifferenceRule:
    """h = x − p or p − x: ∂f/∂p = ∓g, summed likewise."""

    def bind(self, input: object, other: object, *, alpha: float = 1) -> Operation | None:
        operation = _bind(input, other) if alpha == 1 else None
        sign = 1 if operation and operation.input is other else -1
        return operation and replace(operation, options={"sign": sign})

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        total = _broadcast_sum(g, operation)
        return {"parameter": Dense(operation.options["sign"] * total)}


@rule_for(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
class ProductRule:
    """h = p ∘ x: ∂f/∂p = g ∘ x, summed over the axes along which p is repeated."""

    def bind(self, input: object, other: object) -> Operation | None:
        return _bind(input, other)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        return {"parameter": Dense(_broadcast_sum(g * x, operation))}


@rule_for(torch.div, Tensor.div, Tensor.__truediv__)
class QuotientRule:
    """h = x / p: ∂f/∂p = −g ∘ x / p², summed over the axes along which p is repeated."""

    def bind(
        self, input: object, other: object, *, rounding_mode: str | None = None
    ) -> Operation | None:
        covered = rounding_mode is None and not _is_parameter(input)
        return _bind(input, other) if covered else None

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        p = operation.parameters["parameter"].detach()
        return {"parameter": Dense(-_broadcast_sum(g * x, operation) / p.square())}


@rule_for(Tensor.expand, Tensor.repeat)
class RepeatRule:
    """h_n = p for every example n, as for class tokens and learned queries: ∂f_n/∂p = g_n."""

    def bind(self, input: Tensor, *sizes: Any, **kwargs: Any) -> Operation | None:
        if kwargs or not _is_parameter(input):
            return None
        counts = sizes if len(sizes) != 1 or isinstance(sizes[0], int) else sizes[0]
        new_axis = len(counts) > input.dim()
        if not (new_axis or (input.dim() > 0 and input.shape[0] == 1)):
            return None  # what lies on its first axis are not copies
        return Operation(None, {"parameter": input})

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        shape = operation.parameters["parameter"].shape
        extra = g.dim() - 2 - len(shape)  # -1 if the examples are on the parameter's own first axis
        g = g.flatten(2, 1 + extra).sum(2) if extra > 0 else g
        sizes = shape if extra >= 0 else shape[1:]
        for axis, size in enumerate(sizes, 2):
            g = g.unflatten(axis, (-1, size)).sum(axis)
        return {"parameter": Dense(g.reshape(*g.shape[:2], *shape))}


def _channel_sum(g: Tensor) -> Tensor:
    """Sum (C, B, channels, *space) over space."""
    return g.flatten(3).sum(3) if g.dim() > 3 else g


class _Gain:
    """Shared by the rules below: z is `function` of the input and the operation's options."""

    function: Callable[..., Tensor]

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        pieces: dict[str, Piece] = {}
        for role, parameter in operation.parameters.items():
            local = g * self.function(x, **operation.options) if role == "weight" else g
            pieces[role] = Dense(self.reduce(local, parameter))
        return pieces

    def reduce(self, g: Tensor, parameter: Tensor) -> Tensor:
        """Sum over the axes that share the parameter: all but the channels."""
        return _channel_sum(g)


class _TrailingGain(_Gain):
    def reduce(self, g: Tensor, parameter: Tensor) -> Tensor:
        """Sum over everything between the rows and the parameter's own axes."""
        return g.reshape(*g.shape[:2], -1, *parameter.shape).sum(2)


@rule_for(F.layer_norm)
class LayerNormRule(_TrailingGain):
    """z = (x − mean) / sqrt(var + eps) over the trailing axes."""

    function = staticmethod(F.layer_norm)

    def bind(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Operation:
        options = {"normalized_shape": tuple(normalized_shape), "eps": eps}
        return Operation(input, present(weight=weight, bias=bias), options, axes=None)


@rule_for(F.rms_norm)
class RMSNormRule(_TrailingGain):
    """z = x / sqrt(mean x² + eps) over the trailing axes."""

    function = staticmethod(F.rms_norm)

    def bind(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Operation:
        options = {"normalized_shape": tuple(normalized_shape), "eps": eps}
        return Operation(input, present(weight=weight), options, axes=None)


@rule_for(F.group_norm)
class GroupNormRule(_Gain):
    """z normalised over groups of channels."""

    function = staticmethod(F.group_norm)

    def bind(
        self,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Operation:
        options = {"num_groups": num_groups, "eps": eps}
        return Operation(input, present(weight=weight, bias=bias), options)


@rule_for(F.batch_norm)
class BatchNormRule(_Gain):
    """z from the running statistics (with those of the batch, rows would not be independent)."""

    function = staticmethod(F.batch_norm)

    def bind(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Operation | None:
        if training:
            return None
        options = {"running_mean": running_mean, "running_var": running_var, "eps": eps}
        return Operation(input, present(weight=weight, bias=bias), options)


@rule_for(F.instance_norm)
class InstanceNormRule(_Gain):
    """z normalised per example and channel, or from running statistics."""

    function = staticmethod(F.instance_norm)

    def bind(
        self,
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Operation:
        options = {
            "running_mean": running_mean,
            "running_var": running_var,
            "use_input_stats": use_input_stats,
            "eps": eps,
        }
        return Operation(input, present(weight=weight, bias=bias), options)


@rule_for(F.prelu, torch.prelu)
class PReLURule:
    """h = max(0, x) + w min(0, x): ∂f/∂w = Σ g ∘ min(0, x), one w or one per channel."""

    def bind(self, input: Tensor, weight: Tensor) -> Operation:
        return Operation(input, {"weight": weight})

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        local = g * x.clamp(max=0)
        if operation.parameters["weight"].numel() == 1:
            return {"weight": Dense(local.flatten(2).sum(2, keepdim=True))}
        return {"weight": Dense(_channel_sum(local))}
