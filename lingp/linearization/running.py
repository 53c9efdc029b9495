"""Running a network under known conditions, and reading what comes out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def output_shape(out: Any, rows: int) -> torch.Size:
    """Shape of one example's output; checks that `out` is a tensor with the examples first."""
    if not isinstance(out, Tensor):
        raise TypeError(
            f"net: its output is {type(out).__name__}; expected one tensor. Wrap the network in a "
            "module that returns the tensor to be modelled"
        )
    if out.dim() == 0 or out.shape[0] != rows:
        raise ValueError(
            f"net: its output has shape {tuple(out.shape)} for {rows} rows; expected the examples "
            f"first: ({rows},), ({rows}, C) or ({rows}, ...)"
        )
    return out.shape[1:]


class _NativeRecurrence(TorchFunctionMode):
    """Runs LSTM, GRU and RNN without cuDNN, whose kernels have no derivative in eval mode."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") not in _RECURRENT:
            return func(*args, **(kwargs or {}))
        # not cudnn.flags: it reads allow_tf32, an error once operators have precisions of their own
        cudnn = torch.backends.cudnn
        before = cudnn.enabled
        cudnn.enabled = False
        try:
            return func(*args, **(kwargs or {}))
        finally:
            cudnn.enabled = before


@contextmanager
def _full_precision_convolutions() -> Iterator[None]:
    """Convolutions in float32 as it says, not in the ten bits of TF32 that cuDNN takes for it."""
    cudnn = torch.backends.cudnn
    owners, name, full = (
        ([cudnn.conv, cudnn.rnn], "fp32_precision", "ieee")
        if hasattr(cudnn, "conv")
        else ([cudnn], "allow_tf32", False)
    )
    before = [getattr(owner, name) for owner in owners]
    try:
        for owner in owners:
            setattr(owner, name, full)
        yield
    finally:
        for owner, value in zip(owners, before, strict=True):
            setattr(owner, name, value)


@contextmanager
def plain_autograd(device: torch.device, differentiable: bool) -> Iterator[None]:
    """Ordinary eager autograd, whatever the caller is in.

    Outside inference mode, autocast and compilation, without the fused attention that serves
    inference only (it differs at masked positions), and with attention that is twice differentiable
    where needed.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        if differentiable:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if device.type == "cuda":
            stack.enter_context(_NativeRecurrence())
            stack.enter_context(_full_precision_convolutions())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        if "torch._dynamo" in sys.modules:  # importing it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        torch.backends.mha.set_fastpath_enabled(False)
        yield
