"""Gram matrix by lingp: layer factors, contracted layer by layer."""

from __future__ import annotations

from typing import Any

from contenders.torch_tools import bytes_of, package_versions, set_up
from lingp.linearization import LinearizedNetwork
from lingp.operators import gram


def versions() -> dict[str, str]:
    return package_versions("torch")


class Contender:
    """``K = J J'`` of all examples and outputs; forward and backward passes included."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        network, self._x = set_up(case, data)
        self._linearized = LinearizedNetwork(network, dtype=self._x.dtype)

    def work(self) -> Any:
        _, factors = self._linearized.factors(self._x)
        return gram(factors), factors

    def arrays(self, outcome: Any) -> dict[str, Any]:
        return {"gram": outcome[0].numpy()}

    def kept(self, outcome: Any) -> dict[str, int]:
        matrix, factors = outcome
        return {"result": bytes_of(matrix), "factors": bytes_of(factors)}
