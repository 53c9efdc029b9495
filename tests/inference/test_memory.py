"""How much memory is left: by the machine, control groups and limits of the process."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch

from lingp.runtime import memory

CPU = torch.device("cpu")
PAGE = 4096


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Files that the kernel would show, none at first, and no limits; pages of 4096 bytes."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory.os, "sysconf", lambda _: PAGE)
    limits = {}
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which, unlimited))

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("proc/meminfo", "MemTotal:  64000000 kB\nMemAvailable:  32000000 kB\n")
    write.limits = limits
    return write


def test_the_machine_counts_what_can_be_had_without_swapping(machine):
    assert memory.available_memory(CPU) == 32_000_000 * 1024


def test_other_systems_count_free_pages(machine):
    machine("proc/meminfo", "MemTotal: 1 kB\n")
    assert memory.available_memory(CPU) == PAGE * PAGE  # sysconf says 4096 for both


def test_nothing_known_is_a_cautious_guess(machine, monkeypatch):
    def unknown(name):
        raise ValueError(name)

    machine("proc/meminfo", "")
    monkeypatch.setattr(memory.os, "sysconf", unknown)
    assert memory.available_memory(CPU) == 4 * 2**30


@pytest.mark.parametrize("group", ["", "/a", "/a/b"])
def test_any_ancestor_control_group_limits(machine, group):
    machine("proc/self/cgroup", "0::/a/b\n")
    machine("groups/memory.max", "max\n")
    machine("groups/memory.current", "5\n")
    machine(f"groups{group}/memory.max", "9000000\n")
    machine(f"groups{group}/memory.current", "4000000\n")
    assert memory.available_memory(CPU) == 5_000_000


def test_cached_files_can_be_dropped(machine):
    machine("groups/memory.max", "9000000")
    machine("groups/memory.current", "8000000")
    machine("groups/memory.stat", "anon 100\ninactive_file 3000000\nactive_file 7\n")
    assert memory.available_memory(CPU) == 4_000_000


@pytest.mark.parametrize("mounted", ["/job/7", ""])
def test_version_one_groups(machine, mounted):
    """In a container the path that the kernel tells is often not mounted; the root is the group."""
    machine("proc/self/cgroup", "5:devices:/\n4:memory:/job/7\n0::/\n")
    machine(f"groups/memory{mounted}/memory.limit_in_bytes", "7000000")
    machine(f"groups/memory{mounted}/memory.usage_in_bytes", "4000000")
    machine(f"groups/memory{mounted}/memory.stat", "total_inactive_file 500000\n")
    assert memory.available_memory(CPU) == 3_500_000


def test_limits_of_the_process(machine):
    machine("proc/self/statm", "100 50 40 5 0 30 0\n")
    machine.limits[resource.RLIMIT_AS] = (1000 * PAGE, resource.RLIM_INFINITY)
    assert memory.available_memory(CPU) == 900 * PAGE
    machine.limits[resource.RLIMIT_DATA] = (230 * PAGE, resource.RLIM_INFINITY)
    assert memory.available_memory(CPU) == 200 * PAGE


def test_never_negative(machine):
    machine("proc/self/statm", "100 50 40 5 0 30 0\n")
    machine.limits[resource.RLIMIT_AS] = (50 * PAGE, resource.RLIM_INFINITY)
    assert memory.available_memory(CPU) == 0


def test_cuda_counts_the_cache_of_the_allocator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)
    assert memory.available_memory(torch.device("cuda")) == 1400


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="setrlimit(RLIMIT_AS) on Linux")
def test_a_real_limit_is_seen_and_is_what_can_be_allocated():
    """The file is loaded by itself, without the rest of the library."""
    script = f"""
import importlib.util, resource, sys, types
torch = types.SimpleNamespace(device=None)
sys.modules["torch"] = torch
spec = importlib.util.spec_from_file_location("memory", {memory.__file__!r})
memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(memory)
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
left = memory.available_memory(types.SimpleNamespace(type="cpu"))
bytearray(int(left) - (1 << 22))
try:
    bytearray(int(left) + (1 << 22))
except MemoryError:
    print(left / 2**30)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert 0.8 < float(done.stdout) < 1


def test_bytes_are_readable():
    assert [memory.format_bytes(b) for b in (2e3, 3.5e6, 1.25e9, 7e12)] == [
        "2 kB", "3.5 MB", "1.25 GB", "7 TB",
    ]  # fmt: skip
