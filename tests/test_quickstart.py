"""The quickstart runs as a new user runs it, and what it prints holds together."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "quickstart.py"

ROW = re.compile(r"^(\S.*?)\s+(-?\d+\.\d+)\s+(-?\d+\.\d+)\s+(\d+) %$", re.MULTILINE)
EVIDENCE = re.compile(r"^  (before|after)\s+(-?\d+\.\d)", re.MULTILINE)


# One test and not one for each claim: it runs once, whatever process pytest-xdist gives it to.
def test_quickstart(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", "picture.png"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr

    # The table: a row each, with RMSE, NLL and the percentage inside the 90 % interval.
    table = {name: tuple(map(float, numbers)) for name, *numbers in ROW.findall(done.stdout)}
    assert list(table) == [
        "network, tuned noise only (MAP)",
        'lingp, mean="network"',
        'lingp, mean="refit"',
    ]
    alone, ours, refit = table.values()
    assert ours[0] == alone[0], "the posterior mean is the network's output"
    assert ours[1] < alone[1], "epistemic variance makes the better error bars"
    assert refit[0] < ours[0], "on this split, refitting brings the mean closer"
    assert refit[1] < ours[1]
    assert all(80 <= inside <= 100 for _, _, inside in table.values())

    evidence = dict(EVIDENCE.findall(done.stdout))
    assert float(evidence["after"]) > float(evidence["before"])

    picture = image.imread(tmp_path / "picture.png")
    assert picture.shape[1] > picture.shape[0] > 500
    assert picture[..., :3].std() > 0.1, "something is drawn"
