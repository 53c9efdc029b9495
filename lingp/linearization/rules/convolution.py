"""Convolutions: the linear rule on windows of the input, one position per output pixel.

A transposed convolution is the adjoint: its positions are the input's pixels, and the windows are
cut from the gradient of its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lingp.linearization.rules.base import Dense, Operation, Outer, Piece, present, rule_for


def windows(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    counts: Sequence[int],
) -> Tensor:
    """Windows of `x` (B, channels, *space) as a view (B, channels, *counts, *kernel)."""
    dims = len(kernel)
    steps = x.stride()[-dims:]
    strides = (
        *x.stride()[:-dims],
        *(s * j for s, j in zip(steps, stride, strict=True)),
        *(s * d for s, d in zip(steps, dilation, strict=True)),
    )
    return x.as_strided((*x.shape[:-dims], *counts, *kernel), strides)


def _pad(x: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Zero padding (or, where negative, cropping) of the trailing axes."""
    widths = [w for pair in zip(reversed(before), reversed(after), strict=True) for w in pair]
    return F.pad(x, widths) if any(widths) else x


def _tuple(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _grouped(weight: Tensor, groups: int, a: Tensor, g: Tensor, equation: str) -> Dense:
    """The Jacobian of a grouped weight from a (B, S, I) and g (C, B, S, O) of all groups."""
    a, g = a.unflatten(-1, (groups, -1)), g.unflatten(-1, (groups, -1))
    jacobian = torch.einsum(equation, a, g).flatten(2, 3)  # (C, B, G·O, I) or (C, B, G·I, O)
    return Dense(jacobian.unflatten(-1, weight.shape[1:]))


def _bias(operation: Operation, g: Tensor) -> dict[str, Piece]:
    """The bias's piece, from the gradients in the output, (C, B, O, *space)."""
    return {"bias": Dense(g.flatten(3).sum(-1))} if "bias" in operation.parameters else {}


def _operation(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Operation | None:
    """A convolution of either kind with its arguments named; None without a batch axis."""
    dims = weight.dim() - 2
    if input.dim() != dims + 2:
        return None
    options = {
        "stride": _tuple(stride, dims),
        "padding": padding if isinstance(padding, str) else _tuple(padding, dims),
        "dilation": _tuple(dilation, dims),
        "groups": groups,
    }
    return Operation(input, present(weight=weight, bias=bias), options)


def _weight(operation: Operation) -> tuple[Tensor, torch.Size, int]:
    """The weight, its kernel's shape and number of axes."""
    weight = operation.parameters["weight"]
    return weight, weight.shape[2:], weight.dim() - 2


@rule_for(F.conv1d, F.conv2d, F.conv3d)
class ConvolutionRule:
    """h = W ⋆ a: a_s is the window of the padded input under output pixel s."""

    def bind(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Operation | None:
        return _operation(input, weight, bias, stride, padding, dilation, groups)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        weight, kernel, dims = _weight(operation)
        stride, padding, dilation, groups = operation.options.values()
        spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if padding == "same":
            before = [s // 2 for s in spans]
            after = [s - s // 2 for s in spans]
        elif padding == "valid":
            before = after = [0] * dims
        else:
            before = after = list(padding)
        x = _pad(x, before, after)
        counts = g.shape[-dims:]
        cut = windows(x, kernel, stride, dilation, counts)  # (B, I, *counts, *kernel)
        a = cut.movedim(1, 1 + dims).flatten(1, dims).flatten(2)  # (B, S, I·k)
        by_position = g.flatten(3).mT  # (C, B, S, O)
        if groups == 1:
            bias = "bias" if "bias" in operation.parameters else None
            return {"weight": Outer(a, by_position, bias=bias)}
        piece = _grouped(weight, groups, a, by_position, "bsgi,cbsgo->cbgoi")
        return {"weight": piece, **_bias(operation, g)}


@rule_for(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
class TransposedConvolutionRule:
    """W is (I, O/groups, *kernel): ∂f/∂W = Σ_s a_s (window of g at s)ᵀ, s over input pixels."""

    def bind(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Operation | None:
        return _operation(input, weight, bias, stride, padding, dilation, groups)

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        weight, kernel, dims = _weight(operation)
        stride, padding, dilation, groups = operation.options.values()
        counts = x.shape[-dims:]
        # Input pixel p reaches output pixels p·stride + k·dilation − padding; g is padded to them.
        need = [
            (n - 1) * s + d * (k - 1) + 1
            for n, s, d, k in zip(counts, stride, dilation, kernel, strict=True)
        ]
        after = [n - p - size for n, p, size in zip(need, padding, g.shape[-dims:], strict=True)]
        padded = _pad(g.flatten(0, 1), padding, after)
        cut = windows(padded, kernel, stride, dilation, counts)  # (C·B, O, *counts, *kernel)
        cut = cut.movedim(1, 1 + dims).flatten(1, dims).flatten(2)
        by_position = cut.unflatten(0, g.shape[:2])  # (C, B, S, O·k)
        a = x.flatten(2).mT  # (B, S, I)
        piece: Piece = Outer(a, by_position, input_major=True)
        if groups > 1:
            piece = _grouped(weight, groups, a, by_position, "bsgi,cbsgo->cbgio")
        return {"weight": piece, **_bias(operation, g)}
