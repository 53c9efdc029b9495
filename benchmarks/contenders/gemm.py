"""The machine's own rate: one large square matrix product, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contenders.torch_tools import package_versions


def versions() -> dict[str, str]:
    return package_versions("torch")


class Contender:
    """``A @ B`` of two square matrices of size ``case["size"]``."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        torch.set_num_threads(case["threads"])
        dtype = getattr(torch, case["dtype"])
        generator = torch.Generator().manual_seed(0)
        shape = (case["gemm_size"], case["gemm_size"])
        self._left = torch.randn(shape, dtype=dtype, generator=generator)
        self._right = torch.randn(shape, dtype=dtype, generator=generator)

    def work(self) -> Tensor:
        return self._left @ self._right
