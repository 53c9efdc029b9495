"""First derivatives that refuse to be differentiated again.

torch's `once_differentiable` raises only if the second derivative is asked of everything: asked of
chosen inputs, `torch.autograd.grad` leaves its part out without a word, and the rest is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def first_order(
    compute: Callable[[], Sequence[Tensor | None]], *inputs: Tensor
) -> list[Tensor | None]:
    """The gradients of a backward pass, computed without a graph.

    Parameters
    ----------
    compute
        Gives the gradients.
    inputs
        What they depend on: a derivative of the gradients that passes through one of these raises.
    """
    with torch.no_grad():
        gradients = list(compute())
    if not torch.is_grad_enabled():
        return gradients
    return [None if g is None else _Refusal.apply(g, *inputs) for g in gradients]


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, *inputs: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:
        raise RuntimeError(
            "second derivatives of this result are not available: it is streamed through a QR or "
            "inducing points, goes through the mode of a likelihood that isn't quadratic, or "
            'through the root of a singular matrix; use exact inference with mean="network" and a '
            "likelihood whose root has a closed form, or differences of first derivatives"
        )
