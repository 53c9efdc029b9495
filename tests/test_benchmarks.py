"""The benchmarks run, print a table of the right shape, and agree with dense float64 Jacobians."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def run(script, *flags, tmp_path):
    """The report a benchmark writes, as printed and as lines."""
    output = tmp_path / "report.md"
    command = [sys.executable, str(BENCHMARKS / script), "--quick", "--threads", "1"]
    done = subprocess.run(
        [*command, "--output", str(output), "--venvs", str(tmp_path / "none"), *flags],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = output.read_text(encoding="utf-8")
    assert done.stdout.strip() == report.strip()
    return report


def table_of(report):
    """The one Markdown table of a report, as a list of dicts."""
    lines = [line for line in report.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header, rule, *rows = cells
    assert all(set(cell) <= {"-", ":"} for cell in rule)
    assert all(len(row) == len(header) for row in rows)
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_kernel_agrees_with_dense_jacobians_for_every_network(tmp_path):
    rows = table_of(run("kernel.py", "--only", "lingp", tmp_path=tmp_path))
    assert len(rows) == 4
    for row in rows:
        assert row["contender"] == "lingp"
        assert row["time / lingp"] == "1.00"
        assert float(row["median (ms)"]) > 0
        assert float(row["error"]) < 1e-5


def test_products_agree_with_dense_jacobians_in_both_dtypes(tmp_path):
    only = "lingp,lingp GGN,lingp operator first,forward pass"
    rows = table_of(run("products.py", "--only", only, tmp_path=tmp_path))
    assert len(rows) == 2 * 4
    for row in rows:
        if row["contender"] == "forward pass":
            assert row["error"] == "–"
            continue
        assert float(row["error"]) < (1e-5 if row["dtype"] == "float32" else 1e-13)
        assert float(row["forward passes / rhs"]) > 0


def test_exact_agrees_with_the_dense_posterior_and_a_missing_peer_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    report = run("exact.py", tmp_path=tmp_path)
    ours, peer = table_of(report)
    assert float(ours["error"]) < 1e-10
    assert float(ours["error to diagonal Λ"]) > 1e-3  # the two references do differ
    assert peer["median (ms)"] == "failed"
    assert "- laplace-torch failed on float64: " in report


def test_an_unknown_contender_is_refused(tmp_path):
    with pytest.raises(AssertionError, match="no contender nobody; there are: lingp, laplace"):
        run("exact.py", "--only", "nobody", tmp_path=tmp_path)
