"""The UCI benchmark runs, joins earlier runs, and compares with the right published rows."""

import importlib
import json

import numpy as np
import pytest
from scripts import run_quick

from lingp.data import load_yacht


@pytest.fixture
def uci(benchmark_module):
    return benchmark_module("uci")


@pytest.fixture
def published(uci):
    return importlib.import_module("uci_published")


def records(uci, **log_likelihood):
    """One split of each set, the same scores in all rows."""
    scores = {"rmse": 1.0, "seconds": 3.0, "evidence": 0.0}
    return {
        name: {0: {row: {"log_likelihood": value, **scores} for row in uci.ROWS}}
        for name, value in log_likelihood.items()
    }


def test_published_rows_cover_all_sets_and_the_best_are_known(published):
    # read off data/README.md, section 5.1 (same splits) and 5.2 (others)
    same = {"boston": -2.40, "energy": -1.212, "kin8nm": 1.20, "naval": 5.63, "yacht": -1.18}
    every = {"energy": -0.61, "kin8nm": 1.37, "naval": 6.33, "power": -2.74, "yacht": -0.41}
    for name, value in same.items():
        assert published.best(name, same_splits=True).log_likelihood[name][0] == value
    for name, value in every.items():
        assert published.best(name, same_splits=False).log_likelihood[name][0] == value
    for row in published.PUBLISHED[:4]:
        assert set(row.log_likelihood) == set(row.rmse) == set(published.SETS)
        assert row.same_splits
    assert not any(row.same_splits for row in published.PUBLISHED[4:])


def test_targets_are_met_or_not(uci):
    lines = uci.verdicts(records(uci, yacht=0.01, energy=-0.7), {"yacht": 308, "energy": 768})
    text = "\n".join(lines)
    assert "yacht, homoscedastic: **0.010** (target >= 0: met)" in text
    assert "energy, homoscedastic: **-0.700** (target >= -0.52: not met)" in text
    assert "ahead of the best published row on the same splits on 2 of 2" in text
    assert "ahead of the best published row of all rows on 1 of 2 (yacht)" in text
    assert "3.0 s per split (target < 10 s: met)" in text


def test_the_kind_of_noise_is_chosen_by_evidence_not_by_the_test_rows(uci):
    found = records(uci, yacht=0.0)
    del found["yacht"][0][uci.CHOSEN]
    found["yacht"][0][uci.HETEROSCEDASTIC] |= {"evidence": 5.0, "log_likelihood": -1.0}
    chosen = uci.with_choice(found)["yacht"][0][uci.CHOSEN]
    assert chosen["log_likelihood"] == -1.0
    assert chosen["seconds"] == 6.0  # both were trained
    assert uci.CHOSEN not in found["yacht"][0]


def test_differences_are_of_the_same_splits(uci, tmp_path):
    file = tmp_path / "ref_mcdropout_gal2018_per_split.csv"
    file.write_text("dataset,split,test_ll\nyacht,0,-1.5\nyacht,1,100.0\n")
    lines = uci.paired(records(uci, yacht=-1.0, wine=0.0), uci.per_split(tmp_path))
    assert lines[0] == "- yacht, homoscedastic: +0.500 on 1 splits"
    assert len(lines) == len(uci.ROWS)
    assert uci.per_split(tmp_path / "nothing") == {}


def test_large_sets_have_no_limit_of_time(uci):
    lines = uci.verdicts(records(uci, kin8nm=1.0), {"kin8nm": 8192})
    assert not any("per split" in line for line in lines)


def test_earlier_runs_are_joined(uci, tmp_path):
    for file, found in (("a", records(uci, yacht=0.0)), ("b", records(uci, boston=-2.0))):
        (tmp_path / file).write_text(json.dumps(found))
    joined = uci.earlier(f"{tmp_path / 'a'},{tmp_path / 'b'}")
    assert set(joined) == {"boston", "yacht"}
    assert joined["boston"][0][uci.HOMOSCEDASTIC]["log_likelihood"] == -2.0


def test_quick_run_writes_a_report_and_its_numbers(tmp_path):
    yacht = load_yacht()
    np.savez(tmp_path / "uci_yacht.npz", X=yacht.X, y=yacht.y, test_index=yacht.test_index)
    output, raw = tmp_path / "uci.md", tmp_path / "uci.json"
    run_quick("uci.py", "--data", tmp_path, "--output", output, "--raw", raw)
    found = json.loads(raw.read_text())["yacht"]["0"]
    assert set(found) == {"homoscedastic", "network's mean", "heteroscedastic"}
    for scores in found.values():
        # of a few steps: far from good, but a normal with the data's own moments has -4.1 and 15
        assert scores["log_likelihood"] > -4.0
        assert 0 < scores["rmse"] < 12
    report = output.read_text(encoding="utf-8")
    assert "1 of 20" in report
    assert "lingp heteroscedastic" in report
