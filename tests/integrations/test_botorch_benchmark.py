"""The benchmark of Bayesian optimisation runs, goes on where it stopped, and draws."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("botorch", reason="BoTorch is not installed")
image = pytest.importorskip("matplotlib.image")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_it_prints_a_table_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import bayesian_optimisation

    monkeypatch.setattr(bayesian_optimisation, "RAW_SAMPLES", 8)
    monkeypatch.setattr(bayesian_optimisation, "RESTARTS", 1)
    raw, picture = tmp_path / "raw.json", tmp_path / "regret.png"
    flags = ["--quick", "--evaluations", "1", "--raw", str(raw), "--picture", str(picture)]
    monkeypatch.setattr(sys, "argv", ["bayesian_optimisation.py", *flags])
    bayesian_optimisation.main()
    runs = json.loads(raw.read_text())
    assert [run["model"] for run in runs] == ["lingp", "SingleTaskGP", "random"]
    for run in runs:
        assert run["regret"][0] == runs[0]["regret"][0], "all start from the same points"
        assert len(run["regret"]) == 2
        assert run["regret"][1] <= run["regret"][0]
    table = capsys.readouterr().out
    assert sum(line.startswith("| branin") for line in table.splitlines()) == 3
    assert image.imread(picture)[..., :3].std() > 0.05
    bayesian_optimisation.main()
    assert json.loads(raw.read_text()) == runs
