"""All tensors of a module, kept aside and put back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Any]


def tensors_of(module: nn.Module) -> Tensors:
    """Copies of a module's parameters and buffers, also of those that `state_dict` leaves out."""
    found = {k: v.clone() if isinstance(v, Tensor) else v for k, v in module.state_dict().items()}
    for name, buffer in module.named_buffers():
        if name not in found:
            found[name] = buffer.detach().clone()
    return found


def set_tensors(module: nn.Module, values: Tensors) -> None:
    """Put back what `tensors_of` gave, in place."""
    known = module.state_dict().keys()
    module.load_state_dict({k: v for k, v in values.items() if k in known})
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name not in known:
                buffer.copy_(values[name])
