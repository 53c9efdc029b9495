"""What contenders written in PyTorch share."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import networks
import torch
from torch import Tensor, nn


def set_up(case: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[nn.Module, Tensor]:
    """The case's network and inputs in the case's dtype; sets the number of threads."""
    torch.set_num_threads(case["threads"])
    dtype = getattr(torch, case["dtype"])
    network = networks.load_weights(networks.build(case["architecture"]), data, dtype)
    return network, torch.from_numpy(data["x"]).to(dtype)


def package_versions(*packages: str) -> dict[str, str]:
    """Versions of installed packages, by name."""
    return {package: importlib.metadata.version(package) for package in packages}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def bytes_of(value: Any) -> int:
    """Bytes of all memory the tensors inside `value` keep alive; shared memory counts once."""
    storages = {}
    for tensor in _tensors(value):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class Laps:
    """Seconds of the steps of some work, one after the other.

    `clock` is `time.process_time` where what else the machine does shall play no part.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._seconds: dict[str, float] = {}
        self._clock, self._last = clock, clock()

    def __call__(self, step: str) -> None:
        now = self._clock()
        self._seconds[step], self._last = now - self._last, now

    def tensors(self) -> dict[str, Tensor]:
        """By "seconds <step>"."""
        return {f"seconds {step}": torch.tensor(value) for step, value in self._seconds.items()}
