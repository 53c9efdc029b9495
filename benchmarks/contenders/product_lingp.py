"""Products with the kernel and with the GGN by lingp, from layer factors that are there already."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contenders.torch_tools import bytes_of, package_versions, set_up
from lingp.linearization import LinearizedNetwork
from lingp.operators import NTKLinearOperator


def versions() -> dict[str, str]:
    return package_versions("torch")


class Contender:
    """``side`` is "ntk": J Jᵀ V, V (N·C x K); or "ggn": Jᵀ J W, W (P x K)."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        network, x = set_up(case, data)
        _, self._factors = LinearizedNetwork(network, dtype=x.dtype).factors(x)
        self._side = case["side"]
        self._right = torch.from_numpy(data[self._side])
        self._kernel = NTKLinearOperator.from_factors(self._factors)

    @torch.no_grad()
    def work(self) -> Tensor:
        if self._side == "ntk":
            return self._kernel @ self._right
        return self._factors.t_matmul(self._factors.matmul(self._right))

    def arrays(self, outcome: Tensor) -> dict[str, Any]:
        return {"product": outcome.numpy()}

    def kept(self, outcome: Tensor) -> dict[str, int]:
        return {"result": bytes_of(outcome)}
