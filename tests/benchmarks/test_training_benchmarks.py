"""The benchmark of training time runs, counts what it says, and tells a missed target."""

import json
import sys

import numpy as np
import pytest
import torch


@pytest.fixture
def training_time(benchmark_module):
    return benchmark_module("training_time")


@pytest.fixture
def data_folder(tmp_path):
    """Smooth data under the name of kin8nm, and random images under that of MNIST."""
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 8))
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * random.normal(size=60)
    np.savez(tmp_path / "uci_kin8nm.npz", X=x, y=y, test_index=[np.arange(20)])
    pixels = random.integers(0, 256, (50, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "mnist_t10k.npz", images=pixels, labels=random.integers(0, 10, 50))
    return tmp_path


@pytest.fixture
def report_of(training_time, data_folder, monkeypatch, capsys):
    def run(*flags):
        command = ["training_time", "--quick", "--data", str(data_folder), "--threads", "1", *flags]
        monkeypatch.setattr(sys, "argv", command)
        threads = torch.get_num_threads()
        try:
            training_time.main()
        finally:
            torch.set_num_threads(threads)
        return capsys.readouterr().out

    return run


def rows_of(report):
    lines = [line.strip("|").split("|") for line in report.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_every_contender_trains_the_same_network(training_time, report_of, tmp_path):
    raw = tmp_path / "raw.json"
    report = report_of("--sets", "kin8nm", "--raw", str(raw))
    rows = rows_of(report)
    precisions = ["–", "1", "6", "111", "3051", "1", "3051"]
    assert [row["precisions"] for row in rows] == precisions
    assert [row["training"] for row in rows[:2]] == ["MAP", "scalar"]
    assert rows[0]["of MAP"] == "1.00"
    assert rows[0]["in steps"] == "0 %"
    for row in rows[1:7]:
        assert float(row["error"]) == pytest.approx(float(rows[0]["error"]), rel=0.2)
        assert 1 < float(row["in steps"].removesuffix(" %")) < 100
    found = json.loads(raw.read_text())["kin8nm"]
    assert set(found) == {c.name for c in training_time.CONTENDERS if "kin8nm" in c.tasks}
    assert all(len(record["seconds"]) == 1 for record in found.values())


def test_images_are_trained_on_blocks(report_of):
    flags = ["--sets", "mnist", "--only", "MAP,layerwise blocks,diagonal one-output blocks"]
    rows = rows_of(report_of(*flags))
    assert [row["precisions"] for row in rows] == ["–", "10", "61706"]


def test_a_time_above_the_target_is_told(training_time):
    record = training_time.Record
    found = {
        "MAP": record([1.0, 3.0, 2.0], [0.0] * 3),
        "diagonal": record([4.5, 3.9, 4.2], [2.1] * 3, 3051, 0.1),
    }
    lines = training_time.report({"mlp": found}, {}, 1.0)
    assert "3051 precisions, beside MAP: **2.10×** (target ≤ 2×: not met)" in lines
    assert rows_of(lines)[1]["in steps"] == "50 %"
    found["diagonal"].seconds = [3.9] * 3
    assert "beside MAP: **1.95×** (target ≤ 2×: met)" in training_time.report({"mlp": found}, {}, 1)


def test_the_plain_loop_counts_the_steps_of_the_others(training_time, data_folder, monkeypatch):
    """In batches it goes over whole epochs, and its time is that of the steps it should have."""
    task = training_time.make_task("kin8nm", data_folder, quick=True)
    monkeypatch.setattr(training_time, "FULL", 1)
    monkeypatch.setattr(training_time, "BATCH", 10)
    clock = iter([0.0, 6.0])
    monkeypatch.setattr(training_time.time, "perf_counter", lambda: next(clock))
    record = training_time.Record()
    training_time.trained_by_map(task, record)  # 24 rows: 3 steps an epoch, 1 epoch for 4 steps
    assert record.seconds == [8.0]
