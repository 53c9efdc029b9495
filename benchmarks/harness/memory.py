"""Peak memory of one piece of work: how far the process's resident set rises above where it was.

Standard library only: this runs inside every peer's environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

_STATUS = "/proc/self/status"
_CLEAR_REFS = "/proc/self/clear_refs"
_SAMPLING_SECONDS = 0.0005


def _status_bytes(field: str) -> int:
    with open(_STATUS) as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no field {field}")


def high_water_mark() -> int | None:
    """Largest resident set of this process since it started or `peak_of` began, in bytes."""
    try:
        return _status_bytes("VmHWM")
    except OSError:
        return None


def _release_free_memory() -> None:
    """Hand freed heap pages back, so that memory kept from earlier work does not hide a rise."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _reset_high_water_mark() -> bool:
    try:
        with open(_CLEAR_REFS, "w") as clear_refs:
            clear_refs.write("5")
    except OSError:
        return False
    return True


class _Sampler(threading.Thread):
    """Largest resident set seen by looking often; misses what lives shorter than a look."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.is_set():
            self.peak = max(self.peak, _status_bytes("VmRSS"))
            time.sleep(_SAMPLING_SECONDS)

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.peak


def peak_of(work: Callable[[], Any]) -> tuple[Any, int | None, float, str]:
    """Run `work` and measure how far the resident set rose above its level just before.

    Returns
    -------
    outcome : object
        What `work` returned.
    rise : int or None
        Bytes; None where the system does not tell (anything but Linux).
    seconds : float
        How long it took.
    how : str
        ``"high-water mark"`` (exact), ``"sampled"`` (a lower bound) or ``"unavailable"``.
    """
    _release_free_memory()
    try:
        before = _status_bytes("VmRSS")
    except OSError:
        outcome, seconds = _timed(work)
        return outcome, None, seconds, "unavailable"
    if _reset_high_water_mark():
        outcome, seconds = _timed(work)
        return outcome, max(0, _status_bytes("VmHWM") - before), seconds, "high-water mark"
    sampler = _Sampler()
    sampler.start()
    outcome, seconds = _timed(work)
    return outcome, max(0, sampler.stop() - before), seconds, "sampled"


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    outcome = work()
    return outcome, time.perf_counter() - start
