"""The benchmark of trained classifiers runs, and its report says what it found."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def data_folder(tmp_path):
    random = np.random.default_rng(0)
    x = np.column_stack([random.normal(size=(60, 2)), np.ones(60)])
    rows = random.permutation(60)
    np.savez(
        tmp_path / "cls_glass.npz",
        X=3 + 2 * x,
        y=(x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5),
        immer2021_test_index=[rows[:10]],
        immer2021_valid_index=[rows[20:30]],
    )
    return tmp_path


def test_our_contenders_are_scored_without_the_peer(tmp_path, data_folder):
    raw, output = tmp_path / "raw" / "numbers.json", tmp_path / "report.md"
    command = [sys.executable, str(BENCHMARKS / "trained_classifiers.py"), "--quick"]
    flags = ["--only", "MAP,lingp", "--data", str(data_folder), "--hidden", "8"]
    done = subprocess.run(
        [*command, *flags, "--raw", str(raw), "--output", str(output)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = output.read_text(encoding="utf-8")
    assert done.stdout.strip() == report.strip()
    assert "failed" not in report
    found = json.loads(raw.read_text())["glass"]["0"]
    ours = {"lingp"} | {
        f"lingp {kind}"
        for kind in ("network", "train", "train network", "valid", "valid retrained")
    }
    assert set(found) == {"MAP", "MAP retrained"} | ours
    for scores in found.values():
        assert 0 < scores["nll"] < np.log(3) + 0.3
        assert 0 <= scores["ece"] <= 1
        assert 0.3 < scores["accuracy"] <= 1
        assert scores["precision"] > 0
        assert scores["seconds"] > 0
    seconds = [found[f"lingp{kind}"]["seconds"] for kind in ("", " valid", " valid retrained")]
    assert seconds[2] == pytest.approx(seconds[0] + seconds[1])
    assert found["MAP"]["precision"] in np.logspace(-2, 2, 10)[::3]
    assert f"{found['lingp']['nll']:.3f}" in report


def test_the_rival_is_the_best_one_that_has_all_splits(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("trained_classifiers")

    def scores(nll, ece):
        return {"nll": nll, "ece": ece}

    records = {
        "glass": {
            1: {"lingp": scores(0.5, 0.1), "MAP": scores(0.9, 0.2), "laplace": scores(0.8, 0.3)},
            0: {
                "lingp": scores(0.6, 0.1),
                "MAP": scores(0.8, 0.0),
                "laplace": scores(0.6, 0.3),
                "laplace mc": scores(0.1, 0.0),
            },
        }
    }
    made = benchmark.comparison(records, "lingp", ("MAP", "laplace"))
    row = next(line for line in made.splitlines() if line.startswith("| glass"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    # laplace mc has one split only; differences -0.3, 0.0: mean -0.15, s.e. 0.15
    assert cells[:5] == ["glass", "2", "laplace", "-0.1500 ± 0.1500", "won"]
    assert cells[5] == "-0.2000 ± 0.0000"  # ECE, the same rival
    assert cells[6:] == ["MAP", "+0.0000 ± 0.1000", "within s.e."]
    assert "ahead by NLL on 1 of 1 sets, by ECE on 0 of 1" in made


def test_earlier_numbers_are_joined(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("trained_classifiers")
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(json.dumps({"glass": {"0": {"lingp": {"nll": 1.0}, "MAP": {"nll": 3.0}}}}))
    two.write_text(json.dumps({"glass": {"0": {"lingp": {"nll": 2.0}}, "1": {}}}))
    records = benchmark.earlier(f"{one},{two}")
    assert records == {"glass": {0: {"lingp": {"nll": 2.0}, "MAP": {"nll": 3.0}}, 1: {}}}
    assert benchmark.values(records, "glass", "lingp", "nll") == [2.0]


def test_the_flags_choose_contenders_by_name(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("trained_classifiers")
    command_line = importlib.import_module("harness.command_line")
    arguments = argparse.Namespace(only=None, skip="laplace-torch tuned kron valid")
    names = [c.name for c in command_line.chosen(benchmark.contenders(), arguments)]
    assert names[:2] == ["MAP", "lingp"]
    assert len(names) == len(set(names))
    assert "laplace-torch trained full scalar" in names
