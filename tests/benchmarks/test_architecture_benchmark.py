"""The benchmark of architecture choice runs, and its ranks are those of its numbers."""

import json

import numpy as np
import pytest
from scripts import run_quick

from lingp.data import load_yacht


@pytest.fixture
def architectures(benchmark_module):
    return benchmark_module("architectures")


def found(evidence, test, failure=None):
    if failure:
        return {"failure": failure}
    others = {"gamma": 1.0, "parameters": 3, "seconds": 0.1, "failure": None}
    return {"evidence": evidence, "test": test, **others}


def test_choice_is_by_evidence_and_ranks_are_of_means(architectures):
    splits = {
        0: {"linear": found(-1, -1), "1 x 5 gelu": found(0, 1), "2 x 50 gelu": found(2, 0)},
        1: {"linear": found(-1, -3), "1 x 5 gelu": found(4, 0), "2 x 50 gelu": found(1, 3)},
    }
    row = architectures.choice("yacht", splits)
    assert row[:5] == ["yacht", "2", "0.50", "0.33", "0.50, 0.50"]
    assert row[5:] == ["0.000", "2.000", "0.000", "1.500"]
    lines = architectures.disagreements(splits)
    assert "- 2 x 50 gelu: rank 2 by evidence, 1 by test" in lines
    assert architectures.candidate_table(splits).splitlines()[2].startswith("| 1 x 5 gelu")


def test_failures_are_listed_and_don_t_count(architectures):
    splits = {
        0: {"linear": found(0, 0), "1 x 5 relu": found(0, 0, "exploded")},
        1: {"linear": found(0, 0), "1 x 5 relu": found(1, 1)},
    }
    assert list(architectures.average(splits, "test")) == ["linear"]
    assert "- split 0, 1 x 5 relu failed: exploded" in architectures.disagreements(splits)


def test_names_say_what_a_candidate_is(architectures):
    made = architectures.candidates(3, 2, (1, 3), (4,))
    assert list(made) == [
        "linear",
        *[f"{d} x 4 {a}" for d in (1, 3) for a in ("tanh", "gelu", "relu")],
    ]
    assert architectures.described("3 x 4 relu") == (3, 4, "relu")
    assert architectures.described("linear") == (0, 0, "linear")
    assert [p.shape[0] for p in made["3 x 4 tanh"]().parameters()] == [4, 4, 4, 4, 4, 4, 2, 2]


def test_quick_run_writes_report_numbers_and_picture(tmp_path):
    pytest.importorskip("matplotlib")
    yacht = load_yacht()
    np.savez(tmp_path / "uci_yacht.npz", X=yacht.X, y=yacht.y, test_index=yacht.test_index)
    output, raw, plot = (tmp_path / f"made.{kind}" for kind in ("md", "json", "png"))
    flags = ["--data", tmp_path, "--output", output, "--raw", raw, "--plot", plot]
    run_quick("architectures.py", *flags)
    numbers = json.loads(raw.read_text())["yacht"]["0"]
    assert len(numbers) == 4
    for values in numbers.values():
        assert values["failure"] is None
        # a normal with the data's own moments has -4.1
        assert -6 < values["test"] < 2
    assert plot.read_bytes()[:4] == b"\x89PNG"
    report = output.read_text(encoding="utf-8")
    assert "## yacht" in report
    assert report.count("| 1 x 8 relu |") == 1
