"""Running a network under known conditions, and differentiating what comes out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
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


def keeping_random_state(device: torch.device) -> AbstractContextManager[Any]:
    """A context that gives the generators back as they were, whatever a network draws inside."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def output_gradients(
    f: Tensor, hs: Sequence[Tensor], create_graph: bool, mapped: bool = True
) -> list[Tensor]:
    """∂f_c/∂h for every output c: (C, *h.shape) for every h, by one mapped pass or by C."""
    rows, outputs = f.shape
    if not hs or not f.requires_grad:
        return [h.new_zeros(outputs, *h.shape) for h in hs]
    basis = torch.eye(outputs, dtype=f.dtype, device=f.device).unsqueeze(1).expand(-1, rows, -1)
    options = {"create_graph": create_graph, "retain_graph": True}
    if mapped and outputs > 1:
        try:
            grads = torch.autograd.grad(
                f, hs, basis, is_grads_batched=True, allow_unused=True, **options
            )
        except RuntimeError:  # an operation that cannot be mapped
            return output_gradients(f, hs, create_graph, mapped=False)
        empty = [h.new_zeros(1, *h.shape).expand(outputs, *h.shape) for h in hs]
        return [z if g is None else g for g, z in zip(grads, empty, strict=True)]
    singles = [torch.autograd.grad(f, hs, b, materialize_grads=True, **options) for b in basis]
    return [torch.stack(per_output) for per_output in zip(*singles, strict=True)]


def leaves(f: Tensor) -> list[Tensor]:
    """Tensors without history that `f` depends on and that require grad."""
    found, seen = [], set()
    waiting = [f.grad_fn] if f.grad_fn is not None else []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
    return found
