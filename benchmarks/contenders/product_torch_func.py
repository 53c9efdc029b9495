"""Kernel-vector products by automatic differentiation: jvp after vjp, in `torch.func`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jvp, vjp, vmap

from contenders.torch_tools import bytes_of, package_versions, set_up


def versions() -> dict[str, str]:
    return package_versions("torch")


class Contender:
    """J (Jᵀ V); ``how`` is "vmap" (all right-hand sides at once) or "loop" (one by one)."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, self._x = set_up(case, data)
        self._parameters = {n: p.detach() for n, p in self._network.named_parameters()}
        self._right = torch.from_numpy(data["ntk"])  # (N C x K)
        self._how = case["how"]

    def _function(self, parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(self._network, parameters, (self._x,))

    def _push(self, weights: dict[str, Tensor]) -> Tensor:
        return jvp(self._function, (self._parameters,), (weights,))[1]

    @torch.no_grad()
    def work(self) -> Tensor:
        outputs, pull = vjp(self._function, self._parameters)
        columns = self._right.T.reshape(-1, *outputs.shape)  # (K x N x C)
        if self._how == "vmap":
            (weights,) = vmap(pull)(columns)
            products = vmap(self._push)(weights)
        else:
            products = torch.stack([self._push(pull(column)[0]) for column in columns])
        return products.flatten(1).T

    def arrays(self, outcome: Tensor) -> dict[str, Any]:
        return {"product": outcome.numpy()}

    def kept(self, outcome: Tensor) -> dict[str, int]:
        return {"result": bytes_of(outcome)}
