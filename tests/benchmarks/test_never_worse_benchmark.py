"""The benchmark of classifiers against their networks runs, goes on, and marks what is worse."""

import json

import numpy as np
import pytest
import torch
from scripts import run_quick


def run(glass_folder, *flags):
    raw, nets = glass_folder / "raw", glass_folder / "nets"
    where = ["--data", glass_folder, "--raw", raw, "--nets", nets]
    return run_quick("never_worse.py", *flags, *where)


def test_contenders_are_scored_and_a_run_goes_on(glass_folder):
    names = ("network", "lingp scale 1 validation")
    flags = ("--cases", "mlp-*", "--only")
    run(glass_folder, *flags, names[0])
    folder = glass_folder / "raw" / "mlp-glass" / "0"
    (file,) = folder.iterdir()
    net = glass_folder / "nets" / "mlp-glass-0.npz"
    written = file.stat().st_mtime_ns, net.stat().st_mtime_ns
    report = run(glass_folder, *flags, ",".join(names))
    assert "failed" not in report
    assert (file.stat().st_mtime_ns, net.stat().st_mtime_ns) == written
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    for scores in found.values():
        assert 0 < scores["nll"] < np.log(3) + 0.3
        assert 0 <= scores["ece"] <= 1
        assert 0 <= scores["auroc"] == scores["auroc far"] <= 1
        assert f"{scores['nll']:.3f}" in report
        assert scores["seconds predict"] > 0
    assert found["network"]["temperature"] == 1
    assert found[names[1]]["precision"] not in (0, 1)
    assert found[names[1]]["mean_scale"] > 0


def test_every_case_has_a_network_for_its_rows(benchmark_module, glass_folder):
    cases, networks = benchmark_module("never_worse_cases"), benchmark_module("networks")
    made = cases.QUICK_CASES["cnn-40"](glass_folder, 1)
    assert [len(rows.y) for rows in (made.train, made.valid, made.test)] == [40, 400, 397]
    np.testing.assert_array_equal(made.outside["inverted"], 1 - made.test.x)
    assert made.outside["noise"].shape == made.test.x.shape
    for name in ("cnn-200", "transformer-400"):
        problem = cases.CASES[name](glass_folder, 0)
        network = networks.build(problem.architecture)
        assert network(torch.from_numpy(problem.test.x)).shape == (397, 10)
    far = cases.QUICK_CASES["mlp-glass"](glass_folder, 0)
    low, high = far.train.x.min(axis=0), far.train.x.max(axis=0)
    assert (far.outside["far"].max(axis=0) > high)[:2].all()
    assert (np.abs(far.outside["far"] - (low + high) / 2) <= 1.5 * (high - low)).all()


def test_training_takes_its_steps_and_depends_on_its_penalty(benchmark_module):
    cases, networks = benchmark_module("never_worse_cases"), benchmark_module("networks")
    random = np.random.default_rng(0)
    rows = benchmark_module("datasets").Rows(
        random.normal(size=(20, 2)), random.integers(0, 2, size=20)
    )

    def trained(**options):
        torch.manual_seed(0)
        network = networks.build({"kind": "mlp", "sizes": [2, 8, 2]})
        cases.train(network, rows, cases.Training(rate=1e-2, batch=8, **options))
        return sum(float(p.detach().square().sum()) for p in network.parameters())

    assert trained(steps=6) == trained(epochs=2)  # three batches an epoch
    assert trained(steps=7) != trained(steps=6)
    assert trained(steps=60, precision=5.0) < trained(steps=60)
    assert trained(steps=60, decay=1.0) < trained(steps=60)


def test_the_temperature_has_the_least_nll(benchmark_module):
    contender = benchmark_module("contenders.classifier_alone")
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(outputs, -1), 1, generator=generator).squeeze(-1)
    # labels were drawn at temperature 1
    assert contender.best_temperature(3 * outputs, y) == pytest.approx(3, rel=0.1)


def test_what_is_worse_than_the_network_is_marked(benchmark_module):
    reports = benchmark_module("never_worse_report")

    def split(nll, **more):
        return {"nll": nll, "ece": 0.1, "accuracy": 0.9, "auroc": 0.8, **more}

    results = {
        "mlp-glass": {
            "network": {0: split(0.5), 1: split(0.6)},
            "lingp": {0: split(0.5), 1: split(0.64, warnings=["UserWarning: a"]), 2: split(9.0)},
        },
        "cnn-200": {
            "network": {0: split(0.1)},
            "lingp": {0: split(0.2)},
            "laplace-torch all": {0: {"failure": "no"}},
        },
    }
    assert reports.excess(results, "mlp-glass", "lingp") == pytest.approx([0.0, 0.04])
    assert [reports.mark(d) for d in ([0.01], [0.0, 0.04], [0.5], [])] == [
        "",
        "> 0.01",
        "> 0.03",
        "",
    ]
    (row,) = [line for line in reports.summary(results).splitlines() if "lingp" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:6] == ["2", "2", "1", "2 of 3", "2 of 3"]
    assert cells[7:] == ["+0.100 (cnn-200)", "cnn-200"]
    remarks = reports.remarks(results)
    assert "- laplace-torch all failed: no (cnn-200: 1)" in remarks
    assert "- lingp warned: UserWarning: a ... (mlp-glass: 1)" in remarks
    assert "| cnn-200   | laplace-torch all | failed" in reports.score_table(results)
