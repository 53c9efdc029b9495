"""lingp's sparse posterior on the first rows of a data set, and how long each part of it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from harness.memory import high_water_mark
from torch import Tensor

import lingp
from contenders.torch_tools import package_versions, set_up

T = TypeVar("T")
_WARM_UP_ROWS = 512


def versions() -> dict[str, str]:
    return package_versions("torch", "gpytorch", "linear_operator")


class TimedSparse(lingp.Sparse):
    """`Sparse` that writes down how long inducing points took to choose."""

    def bind(self, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        bound = super().bind(*arguments, **options)
        _SELECTIONS.append(time.perf_counter() - start)
        return bound


_SELECTIONS: list[float] = []


class Contender:
    """Fit, evidence, its gradient, and predictions, for the first ``case["rows"]`` rows."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, x = set_up(case, data)
        y = torch.from_numpy(data["y"]).to(x.dtype)
        self._x, self._y = x[: case["rows"]], y[: case["rows"]]
        self._test = torch.from_numpy(data["test_x"]).to(x.dtype)
        self._case = case
        self._seconds: dict[str, float] = {}
        self._run(self._x[:_WARM_UP_ROWS], self._y[:_WARM_UP_ROWS])

    def _prior(self) -> Any:
        precision = self._case["precision"]
        if self._case["prior"] == "layerwise":
            return lingp.priors.Layerwise(precision)
        return lingp.priors.Isotropic(precision)

    def _timed(self, part: str, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self._seconds[part] = time.perf_counter() - start
        return result

    def _run(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        case = self._case
        generator = torch.Generator().manual_seed(0)
        number = min(case["num_inducing"], len(x))
        # as many candidates whatever memory there is: the same inducing points
        inference = TimedSparse(
            number, "greedy", num_candidates=min(2 * number, len(x)), generator=generator
        )
        gp = lingp.LinearizedGP(
            self._network,
            lingp.likelihoods.Gaussian(noise=case["noise"]),
            prior=self._prior(),
            inference=inference,
            mean=case["mean"],
            dtype=x.dtype,
            memory_budget=case["memory"],
        )
        self._timed("fit", lambda: gp.fit(x, y, progress=False))
        self._seconds["selection"] = _SELECTIONS.pop()
        self._seconds["fit"] -= self._seconds["selection"]
        with torch.no_grad():
            self._timed("evidence", gp.log_marginal_likelihood)
        evidence, gradient = self._timed("gradient", lambda: _with_gradient(gp))
        prediction = self._timed("predictions", lambda: gp.predict(self._test, progress=False))
        return {
            "evidence": evidence,
            "gradient": gradient,
            "mean": prediction.mean,
            "variance": prediction.epistemic_variance,
        }

    def work(self) -> dict[str, Tensor]:
        return self._run(self._x, self._y)

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        parts = {f"s.{part}": np.array(seconds) for part, seconds in self._seconds.items()}
        return {
            **{name: value.detach().numpy() for name, value in outcome.items()},
            **parts,
            "high": np.array(float(high_water_mark() or "nan")),
        }

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {"data": self._x.nbytes + self._y.nbytes}


def _with_gradient(gp: lingp.LinearizedGP) -> tuple[Tensor, Tensor]:
    """The evidence and its derivatives in all hyperparameters."""
    evidence = gp.log_marginal_likelihood()
    found = torch.autograd.grad(evidence, [p for _, p in gp.named_hyperparameters()])
    return evidence.detach(), torch.cat([g.reshape(-1) for g in found])
