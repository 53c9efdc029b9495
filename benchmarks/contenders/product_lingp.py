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
    """One of lingp's products, by the case's ``way``.

    factors    J (Jᵀ V), V (N·C x K), through the factors
    ggn        Jᵀ (J W), W (P x K), through the factors
    first      the first product of a new kernel operator, which may form the matrix
    later      a product of an operator that has multiplied before
    """

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        network, x = set_up(case, data)
        _, self._factors = LinearizedNetwork(network, dtype=x.dtype).factors(x)
        self._way = case["way"]
        self._right = torch.from_numpy(data["ggn" if self._way == "ggn" else "ntk"])
        self._rows = (self._factors.num_data, self._factors.num_outputs)
        self._operator = NTKLinearOperator.from_factors(self._factors)

    @torch.no_grad()
    def work(self) -> Tensor:
        if self._way == "factors":
            pulled = self._factors.t_matmul(self._right.unflatten(0, self._rows))
            return self._factors.matmul(pulled).flatten(0, 1)
        if self._way == "ggn":
            return self._factors.t_matmul(self._factors.matmul(self._right))
        if self._way == "first":
            return NTKLinearOperator.from_factors(self._factors) @ self._right
        return self._operator @ self._right

    def arrays(self, outcome: Tensor) -> dict[str, Any]:
        return {"product": outcome.numpy()}

    def kept(self, outcome: Tensor) -> dict[str, int]:
        return {"result": bytes_of(outcome)}
