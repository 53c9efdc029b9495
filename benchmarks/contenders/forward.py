"""One forward pass of the batch, without gradients: the unit that products are measured in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contenders.torch_tools import package_versions, set_up


def versions() -> dict[str, str]:
    return package_versions("torch")


class Contender:
    """``network(x)``."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, self._x = set_up(case, data)

    @torch.no_grad()
    def work(self) -> Tensor:
        return self._network(self._x)
