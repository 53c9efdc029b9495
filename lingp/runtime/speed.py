"""How fast this machine multiplies matrices: counted flops as seconds."""

from __future__ import annotations

import time
from functools import lru_cache

import torch

_SIZE = 768  # some ten milliseconds on a core


def seconds_for(flops: float, dtype: torch.dtype, device: torch.device) -> float:
    """About how long so many flops of linear algebra take, by a product that is timed once."""
    return flops / _rate(dtype, device, torch.get_num_threads())


@lru_cache(maxsize=8)
def _rate(dtype: torch.dtype, device: torch.device, num_threads: int) -> float:
    """Flops a second of a matrix product; the better of two, as the first one warms up."""
    matrix = torch.ones(_SIZE, _SIZE, dtype=dtype, device=device)
    spent = []
    for _ in range(2):
        start = time.perf_counter()
        float((matrix @ matrix)[0, 0])  # a number waits for the device
        spent.append(time.perf_counter() - start)
    return 2.0 * _SIZE**3 / min(spent)
