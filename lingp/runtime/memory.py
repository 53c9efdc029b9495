"""Memory that can still be allocated: what the machine, control groups and process limits leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

_SHARE = 0.8  # of what is free, when the user names no budget
_DENSE_SHARE = 1 / 8  # of the budget, for pieces that are written out
_DENSE_LIMIT = 1 << 28  # bytes; larger pieces are no faster
_UNKNOWN = 4.0 * 2**30  # where the system tells nothing
_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")


def available_memory(device: torch.device) -> float:
    """Bytes that can still be allocated on `device`, as far as the system tells.

    On CUDA what the driver and PyTorch's cache have free. Else the least of what the machine has
    free, what the limits of the process's control groups leave (Linux, version 1 or 2), and what
    its own resource limits leave (`RLIMIT_AS`, `RLIMIT_DATA`); never negative.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + cached)
    known = [_system_memory(), _group_memory(), _process_memory()]
    return max(0.0, min((bytes_ for bytes_ in known if bytes_ is not None), default=_UNKNOWN))


def memory_for(budget: int | None, device: torch.device, held: float = 0.0) -> float:
    """Bytes that may be used: the user's budget, or a share of what is free or `held` already."""
    if budget is not None:
        return float(budget)
    return _SHARE * (available_memory(device) + held)


def dense_bytes(memory: float) -> int:
    """Bytes for pieces that are written out."""
    return int(min(_DENSE_SHARE * memory, _DENSE_LIMIT))


def format_bytes(count: float) -> str:
    """A number of bytes as people write it."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def _system_memory() -> float | None:
    """What the machine has free, without swapping."""
    try:
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    except (OSError, ValueError):
        return _free_pages()  # not Linux
    return _free_pages()


def _free_pages() -> float | None:
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _group_memory() -> float | None:
    """The least that a control group of this process leaves; None without a limit."""
    return min((left for group in _groups() if (left := _left_in(group)) is not None), default=None)


def _groups() -> Iterator[Path]:
    """The directories of this process's memory control groups and of their ancestors.

    Inside a container the paths that the kernel tells may not be mounted: the root then is.
    """
    try:
        lines = (_PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    yield from (_GROUPS, _GROUPS / "memory")
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = _GROUPS / controllers  # version 2 names none
        group = root / path.strip("/")
        while group != root and root in group.parents:
            yield group
            group = group.parent


def _left_in(group: Path) -> float | None:
    """Limit less use; files that the kernel only caches can be dropped and don't count."""
    for limit, use, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, used = (int((group / name).read_text()) for name in (limit, use))
        except (OSError, ValueError):  # no such group, or "max": no limit
            continue
        return float(most - used + _statistic(group / "memory.stat", cache))
    return None


def _statistic(path: Path, name: str) -> int:
    try:
        fields = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
        return int(fields.get(name, 0))
    except (OSError, ValueError):
        return 0


def _process_memory() -> float | None:
    """What the resource limits of this process leave; None without a limit."""
    try:
        import resource
    except ImportError:  # not Unix
        return None
    left = []
    # pages in /proc/self/statm: 0 is all address space, 5 is data and stack
    for limit, field in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
        most, _ = resource.getrlimit(limit)
        if most != resource.RLIM_INFINITY:
            left.append(float(most - _pages(field) * os.sysconf("SC_PAGE_SIZE")))
    return min(left, default=None)


def _pages(field: int) -> int:
    try:
        return int((_PROC / "self/statm").read_text().split()[field])
    except (OSError, ValueError, IndexError):
        return 0  # not Linux
