"""Normalisation and gain layers: h = w ∘ z + b, with z free of the parameters.

The Jacobian of w is g ∘ z, that of b is g, summed over the axes along which they are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lingp.linearization.rules.base import Dense, Operation, Piece, rule_for


def _affine(weight: Tensor | None, bias: Tensor | None) -> dict[str, Tensor]:
    named = {"weight": weight, "bias": bias}
    return {name: t for name, t in named.items() if t is not None}


def _trailing_sum(g: Tensor, shape: torch.Size) -> Tensor:
    """Sum (C, B, ..., *shape) over everything between the rows and `shape`."""
    return g.reshape(*g.shape[:2], -1, *shape).sum(2)


def _channel_sum(g: Tensor) -> Tensor:
    """Sum (C, B, channels, *space) over space."""
    return g.flatten(3).sum(3) if g.dim() > 3 else g


class _Gain:
    """Shared by the rules below: `normalise` gives z, `reduce` sums over the shared axes."""

    normalise: Callable[[Operation, Tensor], Tensor]

    def reduce(self, g: Tensor, parameter: Tensor) -> Tensor:
        return _channel_sum(g)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        pieces: dict[str, Piece] = {}
        for role, parameter in operation.parameters.items():
            local = g * self.normalise(operation, x) if role == "weight" else g
            pieces[role] = Dense(self.reduce(local, parameter))
        return pieces


class _TrailingGain(_Gain):
    def reduce(self, g: Tensor, parameter: Tensor) -> Tensor:
        return _trailing_sum(g, parameter.shape)


@rule_for(F.layer_norm)
class LayerNormRule(_TrailingGain):
    """z = (x − mean) / sqrt(var + eps) over the trailing axes."""

    def bind(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Operation:
        options = {"shape": tuple(normalized_shape), "eps": eps}
        return Operation(input, _affine(weight, bias), options, axes=None)

    def normalise(self, operation: Operation, x: Tensor) -> Tensor:
        return F.layer_norm(x, operation.options["shape"], eps=operation.options["eps"])


@rule_for(F.rms_norm)
class RMSNormRule(_TrailingGain):
    """z = x / sqrt(mean x² + eps) over the trailing axes."""

    def bind(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Operation:
        options = {"shape": tuple(normalized_shape), "eps": eps}
        return Operation(input, _affine(weight, None), options, axes=None)

    def normalise(self, operation: Operation, x: Tensor) -> Tensor:
        return F.rms_norm(x, operation.options["shape"], eps=operation.options["eps"])


@rule_for(F.group_norm)
class GroupNormRule(_Gain):
    """z normalised over groups of channels."""

    def bind(
        self,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Operation:
        return Operation(input, _affine(weight, bias), {"groups": num_groups, "eps": eps})

    def normalise(self, operation: Operation, x: Tensor) -> Tensor:
        return F.group_norm(x, operation.options["groups"], eps=operation.options["eps"])


class _RunningStatistics(_Gain):
    function: Callable[..., Tensor]

    def normalise(self, operation: Operation, x: Tensor) -> Tensor:
        return self.function(x, **operation.options)


@rule_for(F.batch_norm)
class BatchNormRule(_RunningStatistics):
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
        options: dict[str, Any] = {
            "running_mean": running_mean,
            "running_var": running_var,
            "eps": eps,
        }
        return Operation(input, _affine(weight, bias), options)


@rule_for(F.instance_norm)
class InstanceNormRule(_RunningStatistics):
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
        options: dict[str, Any] = {
            "running_mean": running_mean,
            "running_var": running_var,
            "use_input_stats": use_input_stats,
            "eps": eps,
        }
        return Operation(input, _affine(weight, bias), options)


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
