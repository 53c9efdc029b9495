"""Gram matrix from explicit Jacobians, as in PyTorch's own tutorial on neural tangent kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from contenders.torch_tools import bytes_of, package_versions, set_up


def versions() -> dict[str, str]:
    return package_versions("torch")


class Contender:
    """Per-example Jacobians by ``vmap(jacrev(f))``, then one product per parameter tensor."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, self._x = set_up(case, data)
        self._parameters = {n: p.detach() for n, p in self._network.named_parameters()}
        self._buffers = dict(self._network.named_buffers())

    def _function(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        both = (parameters, self._buffers)
        return functional_call(self._network, both, (x.unsqueeze(0),)).squeeze(0)

    @torch.no_grad()
    def work(self) -> Tensor:
        # vmap has no rule for the fused attention kernels; the plain one is the faster here.
        with sdpa_kernel(SDPBackend.MATH):
            jacobians = vmap(jacrev(self._function), (None, 0))(self._parameters, self._x)
        # Each (N x C x shape of the parameter) -> (N*C x P_l); kernels of tensors add up.
        matrices = [j.flatten(2).flatten(0, 1) for j in jacobians.values()]
        total = matrices[0] @ matrices[0].T
        for matrix in matrices[1:]:
            total.addmm_(matrix, matrix.T)
        return total

    def arrays(self, outcome: Tensor) -> dict[str, Any]:
        return {"gram": outcome.numpy()}

    def kept(self, outcome: Tensor) -> dict[str, int]:
        return {"result": bytes_of(outcome)}
