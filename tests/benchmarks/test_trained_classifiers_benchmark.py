"""The benchmark of trained classifiers runs, and its report says what it found."""

import argparse
import json

import numpy as np
import pytest
from scripts import run_quick


def test_our_contenders_are_scored_without_the_peer(tmp_path, glass_folder):
    raw, output = tmp_path / "raw" / "numbers.json", tmp_path / "report.md"
    flags = ["--only", "MAP,lingp", "--data", glass_folder, "--hidden", "8"]
    printed = run_quick("trained_classifiers.py", *flags, "--raw", raw, "--output", output)
    report = output.read_text(encoding="utf-8")
    assert printed.strip() == report.strip()
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


def test_the_rival_is_the_best_one_that_has_all_splits(benchmark_module):
    benchmark = benchmark_module("trained_classifiers")

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


def test_earlier_numbers_are_joined(benchmark_module, tmp_path):
    benchmark = benchmark_module("trained_classifiers")
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(json.dumps({"glass": {"0": {"lingp": {"nll": 1.0}, "MAP": {"nll": 3.0}}}}))
    two.write_text(json.dumps({"glass": {"0": {"lingp": {"nll": 2.0}}, "1": {}}}))
    records = benchmark.earlier(f"{one},{two}")
    assert records == {"glass": {0: {"lingp": {"nll": 2.0}, "MAP": {"nll": 3.0}}, 1: {}}}
    assert benchmark.values(records, "glass", "lingp", "nll") == [2.0]


def test_the_flags_choose_contenders_by_name(benchmark_module):
    benchmark = benchmark_module("trained_classifiers")
    command_line = benchmark_module("harness.command_line")
    arguments = argparse.Namespace(only=None, skip="laplace-torch tuned kron valid")
    names = [c.name for c in command_line.chosen(benchmark.contenders(), arguments)]
    assert names[:2] == ["MAP", "lingp"]
    assert len(names) == len(set(names))
    assert "laplace-torch trained full scalar" in names
