"""What contenders are checked against: dense Jacobians in float64, by `torch.func`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel


def jacobian(network: nn.Module, x: Tensor) -> Tensor:
    """Dense Jacobian (N x C x P) in float64; columns in the order of `network.parameters()`."""
    network = network.double()
    parameters = {name: value.detach() for name, value in network.named_parameters()}
    buffers = dict(network.named_buffers())

    def function(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(network, (parameters, buffers), (x.unsqueeze(0),)).squeeze(0)

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        blocks = vmap(jacrev(function), (None, 0))(parameters, x.double())
        return torch.cat([block.flatten(2) for block in blocks.values()], dim=-1)


def relative_error(value: np.ndarray, reference: np.ndarray) -> float:
    """Frobenius norm of the difference over that of the reference, in float64."""
    difference = value.astype(np.float64) - reference
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))
