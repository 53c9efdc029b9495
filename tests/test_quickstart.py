"""The quickstart runs as a new user runs it, and what it prints holds together."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("quickstart")

SCRIPT = Path(__file__).parents[1] / "examples" / "quickstart.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What the quickstart printed, and the picture that it wrote."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("quickstart")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", "picture.png"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done, folder / "picture.png"


@pytest.fixture(scope="module")
def table(run):
    """RMSE, NLL and percentage inside the interval of each row of the table."""
    rows = re.findall(r"^(.+?)\s+(-?\d+\.\d+)\s+(-?\d+\.\d+)\s+(\d+) %$", run[0].stdout, re.M)
    return {name: tuple(map(float, numbers)) for name, *numbers in rows}


def test_nothing_is_said_on_the_error_stream_but_progress(run):
    complaints = [line for line in run[0].stderr.splitlines() if "Warning" in line]
    assert complaints == []


def test_table_has_the_three_rows(table):
    assert list(table) == [
        "network, tuned noise only (MAP)",
        'lingp, mean="network"',
        'lingp, mean="refit"',
    ]


def test_the_network_keeps_its_mean_and_gains_better_error_bars(table):
    alone, ours, _ = table.values()
    assert ours[0] == alone[0]
    assert ours[1] < alone[1]
    assert 80 <= ours[2] <= 100


def test_refitting_improves_on_this_split(table):
    _, ours, refit = table.values()
    assert refit[0] < ours[0]
    assert refit[1] < ours[1]


def test_tuning_raises_the_evidence(run):
    before, after = (
        float(re.search(rf"^  {name}\s+(-?\d+\.\d)", run[0].stdout, re.M)[1])
        for name in ("before", "after")
    )
    assert after > before


def test_picture_is_a_png_with_something_on_it(run):
    image = pytest.importorskip("matplotlib.image").imread(run[1])
    height, width = image.shape[:2]
    assert width > height > 500
    assert image[..., :3].std() > 0.1
