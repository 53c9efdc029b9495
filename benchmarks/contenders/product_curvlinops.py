"""GGN-matrix product by curvlinops."""

from __future__ import annotations

from typing import Any

import torch
from curvlinops import GGNLinearOperator
from torch import Tensor, nn

from contenders.torch_tools import bytes_of, package_versions, set_up


def versions() -> dict[str, str]:
    return package_versions("torch", "curvlinops-for-pytorch")


class Contender:
    """Jᵀ J W, W (P x K): the GGN of half the summed squared error."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        network, x = set_up(case, data)
        parameters = [p for p in network.parameters() if p.requires_grad]
        with torch.no_grad():
            target = torch.zeros_like(network(x))
        self._operator = GGNLinearOperator(
            network,
            nn.MSELoss(reduction="sum"),
            parameters,
            [(x, target)],
            check_deterministic=False,
        )
        self._right = torch.from_numpy(data["ggn"])

    def work(self) -> Tensor:
        return self._operator @ self._right

    def arrays(self, outcome: Tensor) -> dict[str, Any]:
        return {"product": outcome.detach().numpy() / 2}  # the squared error's Hessian is 2 I

    def kept(self, outcome: Tensor) -> dict[str, int]:
        return {"result": bytes_of(outcome)}
