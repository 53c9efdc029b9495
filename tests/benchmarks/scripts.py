"""Benchmarks run as a user does, small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run_quick(script: str, *flags: object, timeout: float = 600) -> str:
    """What `python benchmarks/SCRIPT --quick FLAGS` prints; it has to succeed."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--quick", *map(str, flags)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
