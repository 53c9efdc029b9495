"""A virtual environment for each peer, made on first use and kept in a cache folder."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
CACHE_VARIABLE = "LINGP_BENCHMARK_VENVS"
_CPU_WHEELS = "https://download.pytorch.org/whl/cpu"


class InstallationError(RuntimeError):
    """A peer's environment could not be made; the benchmark says so and goes on without it."""


def cache_folder(given: str | None) -> Path:
    """The folder of the peers' environments: the flag, else the variable, else `.venvs` here."""
    return Path(given or os.environ.get(CACHE_VARIABLE) or BENCHMARKS / ".venvs").resolve()


def same_torch() -> str:
    """Our own torch as a requirement, build included: a CPU build is never joined by a CUDA one."""
    return f"torch=={importlib.metadata.version('torch')}"


@dataclass(frozen=True)
class Environment:
    """One peer's environment.

    Parameters
    ----------
    name : str
        Folder name inside the cache.
    requirements : tuple of str
        Installed with their dependencies.
    alone : tuple of str
        Installed after them without dependencies, where those would drag in what must not come
        (another torch, torchvision).
    pythons : tuple of (int, int)
        The Python versions it runs on, best first; empty: the one that runs the benchmark.
    """

    name: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    pythons: tuple[tuple[int, int], ...] = field(default=())

    def python(self, cache: Path) -> Path:
        """Path of the environment's interpreter; creates the environment if it is not there."""
        folder = cache / self.name
        interpreter = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        recipe = folder / "recipe.json"
        wanted = json.dumps([self.requirements, self.alone, self.pythons, sys.version_info[:2]])
        stamp = hashlib.sha256(wanted.encode()).hexdigest()
        if recipe.exists() and recipe.read_text() == stamp:
            return interpreter
        print(f"making the environment {self.name} in {folder} ...", file=sys.stderr, flush=True)
        self._create(folder)
        self._install(interpreter)
        recipe.write_text(stamp)  # last: a half-made environment is made again
        return interpreter

    def _create(self, folder: Path) -> None:
        if not self.pythons or sys.version_info[:2] in self.pythons:
            venv.create(folder, clear=True, with_pip=True)
            return
        for major, minor in self.pythons:
            found = shutil.which(f"python{major}.{minor}")
            if found and _run([found, "-m", "venv", "--clear", str(folder)]).returncode == 0:
                return
        names = ", ".join(f"{major}.{minor}" for major, minor in self.pythons)
        raise InstallationError(f"needs a Python among {names}; none is on the path")

    def _install(self, interpreter: Path) -> None:
        pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        torch = [line for line in self.requirements if line.startswith("torch==")]
        others = [line for line in self.requirements if line not in torch]
        if torch:
            # The local label (+cpu) is part of the version, so no other build can satisfy it. The
            # default index may not hold it: then, and only then, PyTorch's own index is asked.
            attempts = [[*pip, *torch], [*pip, *torch, "--extra-index-url", _CPU_WHEELS]]
            _first_success(attempts)
        if others:
            _first_success([[*pip, *torch, *others]])
        if self.alone:
            _first_success([[*pip, "--no-deps", *self.alone]])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _first_success(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        done = _run(command)
        if done.returncode == 0:
            return
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    raise InstallationError((lines or done.stderr.splitlines() or ["pip failed"])[-1])


def search_path(*, own: bool) -> str:
    """`PYTHONPATH` of a worker; in our own environment it finds the lingp this process finds."""
    paths = [str(BENCHMARKS)]
    if own:
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths += [os.path.abspath(entry) for entry in inherited if entry]
        if importlib.util.find_spec("lingp") is None:
            paths.append(str(BENCHMARKS.parent))
    return os.pathsep.join(paths)
