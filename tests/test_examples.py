"""The examples run as a new user runs them, print what they promise, and draw something."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NUMBERS = re.compile(r"-?\d+\.\d+")


def run(script, *flags, folder):
    """What an example prints, line by line; its picture is looked at."""
    image = pytest.importorskip("matplotlib.image")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), "--output", "picture.png", *flags],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    picture = image.imread(folder / "picture.png")
    assert min(picture.shape[:2]) > 300
    assert picture[..., :3].std() > 0.1, "something is drawn"
    return done.stdout.splitlines()


def numbers(lines, start):
    """The numbers with a decimal point in the line that begins with `start`, spaces aside."""
    lines = (" ".join(line.split()) for line in lines)
    (line,) = (line for line in lines if line.startswith(f"{start} "))
    return [float(number) for number in NUMBERS.findall(line[len(start) :])]


def test_heteroscedastic(tmp_path):
    random = np.random.default_rng(0)
    x = random.uniform(0, 10, 40)
    y = np.sin(x) + (0.05 + 0.1 * x) * random.standard_normal(40)
    np.savetxt(tmp_path / "own.csv", np.column_stack([x, y]), delimiter=",", header="x,y")
    flags = ["--steps", "400", "--num-data", "150", "--data", "own.csv"]
    lines = run("heteroscedastic.py", *flags, folder=tmp_path)
    gain, error = numbers(lines, "x sin x, gain")
    assert gain > 2 * error > 0, "noise by the network predicts better"
    assert numbers(lines, "motorcycle, gain")


def test_classification(tmp_path):
    flags = ["--steps", "300", "--num-data", "80", "--pixels", "25"]
    lines = run("classification.py", *flags, folder=tmp_path)
    network_max, _, lingp_max, lingp_mean = numbers(lines, "two moons, sine 100")
    assert network_max > 0.45, "the network is sure, far from all data"
    assert lingp_max < 0.05, "a network of sines moves to 1/2"
    assert lingp_mean < 0.01
    network_max, network_mean, lingp_max, lingp_mean = numbers(lines, "two moons, GELU 100")
    assert network_mean > 0.49
    assert lingp_max < 0.45, "a GELU network levels off"
    assert lingp_mean < 0.35
