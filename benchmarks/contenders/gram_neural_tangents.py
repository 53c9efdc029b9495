"""Gram matrix by neural-tangents' empirical NTK, jitted."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import jax
import numpy as np

from contenders import networks_jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)  # allows float64; dtypes are given everywhere

import neural_tangents as nt  # noqa: E402  (after the configuration)


def versions() -> dict[str, str]:
    packages = ("neural-tangents", "jax", "jaxlib")
    return {package: importlib.metadata.version(package) for package in packages}


class Contender:
    """All examples against all, every pair of outputs; the case names the implementation."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        function, self._params = networks_jax.build(case["architecture"], data, case["dtype"])
        self._x = jax.numpy.asarray(data["x"], case["dtype"])
        kernel = nt.empirical_ntk_fn(
            function,
            trace_axes=(),
            vmap_axes=0,
            implementation=nt.NtkImplementation[case["implementation"]],
        )
        self._kernel = jax.jit(lambda x, params: kernel(x, None, params))

    def work(self) -> Any:
        return self._kernel(self._x, self._params).block_until_ready()  # (N, N, C, C)

    def arrays(self, outcome: Any) -> dict[str, Any]:
        size = outcome.shape[0] * outcome.shape[2]
        return {"gram": np.asarray(outcome.transpose(0, 2, 1, 3).reshape(size, size))}

    def kept(self, outcome: Any) -> dict[str, int]:
        return {"result": outcome.nbytes}
