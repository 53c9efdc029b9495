"""The comparison of inference methods runs, and exact methods come out exact."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "which_inference.py"


def test_which_inference():
    command = [sys.executable, str(SCRIPT), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.strip("|").split("|") for line in done.stdout.splitlines() if line[:1] == "|"]
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines[2:]}
    assert len(rows) == 6
    for name, cells in rows.items():
        error, ratio = float(cells[3]), float(cells[4])
        if "space" in name:
            assert error < 1e-10
        elif "Iterative" in name:
            assert error < 1e-3
        elif "last_layer" in name:
            assert ratio < 1, "fewer weights, less uncertainty"
        else:
            assert error > 0.01, "few inducing points"
