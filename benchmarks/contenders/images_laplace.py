"""Images by laplace-torch: fit, tune, predict.

la = Laplace(net, "classification", subset_of_weights=..., hessian_structure=...)
la.fit(loader)
la.optimize_prior_precision()       # default: 100 steps of Adam, evidence
la(x)                               # default link: probit
"""

from __future__ import annotations

import resource
import time
import warnings
from typing import Any

import numpy as np
import torch
from laplace import Laplace
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from contenders.torch_tools import Laps, package_versions, set_up


def versions() -> dict[str, str]:
    return package_versions("torch", "laplace-torch", "curvlinops-for-pytorch")


class Contender:
    """Class probabilities of test and other images, seconds of each step, and peak memory.

    ``batch`` rows at a time, for the fit ``fit_batch`` if the case has it. Weights of its ``fixed``
    kinds of modules, names with commas, are not uncertain; its ``clock`` may be "processor".
    """

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, x = set_up(case, data)
        torch.set_default_dtype(x.dtype)
        for module in self._network.modules():
            if type(module).__name__ in case.get("fixed", "").split(","):
                module.requires_grad_(False)
        self._train = TensorDataset(x, torch.from_numpy(data["y"]))
        self._test, self._outside = (torch.from_numpy(data[k]) for k in ("test_x", "outside_x"))
        self._case = case

    def work(self) -> dict[str, Tensor]:
        processor = self._case.get("clock") == "processor"
        lap = Laps(time.process_time if processor else time.perf_counter)
        case = self._case
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = Laplace(
                self._network,
                "classification",
                subset_of_weights=case["subset"],
                hessian_structure=case["structure"],
            )
            posterior.fit(DataLoader(self._train, case.get("fit_batch", case["batch"])))
            lap("fit")
            posterior.optimize_prior_precision()
            lap("tune")
            test = self._probabilities(posterior, self._test)
            lap("predict")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            outside = self._probabilities(posterior, self._outside)
            lap("outside")
        return {
            "test": test,
            "outside": outside,
            "precision": posterior.prior_precision.mean(),
            "peak": torch.tensor(peak),
            **lap.tensors(),
        }

    def _probabilities(self, posterior: Any, x: Tensor) -> Tensor:
        return torch.cat([posterior(part).detach() for part in x.split(self._case["batch"])])

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {}
