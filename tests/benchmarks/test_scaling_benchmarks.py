"""The benchmarks of scale run in one process, and a wrong number or a failed stage shows."""

import importlib
import json
import subprocess
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lingp

CPU = torch.device("cpu")


@pytest.fixture
def data_folder(tmp_path):
    """Smooth data under the name of kin40k, with packed masks of test rows."""
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 8))
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * random.normal(size=400)
    masks = random.permuted(np.arange(400) < 40).reshape(-1, 1)
    np.savez(tmp_path / "uci_kin40k.npz", X=x, y=y, test_mask=np.packbits(masks, axis=0), n=400)
    return tmp_path


@pytest.fixture
def report_of(monkeypatch, capsys):
    """Runs a benchmark's main() in this process and gives what it prints."""

    def run(module, *flags):
        monkeypatch.setattr(sys, "argv", [module.__name__, "--quick", *map(str, flags)])
        threads = torch.get_num_threads()
        try:
            module.main()
        finally:
            torch.set_num_threads(threads)
        return capsys.readouterr().out

    return run


def tables_of(report):
    """All Markdown tables of a report, each a list of dicts."""
    found, lines = [], []
    for line in [*report.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip("|").split("|")])
        elif lines:
            header, _, *rows = lines
            found.append([dict(zip(header, row, strict=True)) for row in rows])
            lines = []
    return found


class InProcess:
    """Stands in for the harness's field: contenders work here, one run each."""

    load = 0.0

    def __init__(self, contenders, cache, threads):
        self.threads, self.versions = threads, {}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def compete(self, case, data, schedule, contenders):
        rounds, memory = (importlib.import_module(f"harness.{m}") for m in ("rounds", "memory"))
        results = {}
        for contender in contenders:
            module = importlib.import_module(contender.module)
            self.versions[contender.name] = module.versions()
            made = module.Contender({**case, **contender.options, "threads": 1}, data)
            outcome, peak, seconds, how = memory.peak_of(made.work)
            result = rounds.Result([seconds], peak, how)
            if not contender.timed_only:
                result.kept, result.arrays = made.kept(outcome), made.arrays(outcome)
            results[contender.name] = result
        return results

    answers = compete


def test_scaling_streams_to_the_same_numbers(benchmark_module, data_folder, report_of, monkeypatch):
    scaling = benchmark_module("scaling")
    monkeypatch.setattr(scaling, "Field", InProcess)
    flags = ["--data", data_folder, "--sets", "kin40k", "--budget", "0.15"]
    report = report_of(scaling, *flags, "--cases", "refit,layerwise")
    (rows,) = tables_of(report)
    assert [(row["case"], row["N"]) for row in rows] == [
        (case, n) for case in ("refit", "layerwise") for n in ("90", "360")
    ]
    for row in rows:
        parts = sum(float(row[part]) for part in scaling.PARTS)
        assert float(row["total (s)"]) == pytest.approx(parts, rel=0.02)
    differences = [line for line in report.splitlines() if "difference of" in line]
    assert len(differences) == 2
    for line in differences:
        for part in line.split("difference of ")[1].split(", "):
            assert float(part.split()[1]) < 1e-10, line
    scaling_lingp = benchmark_module("contenders.scaling_lingp")
    assert scaling_lingp._SELECTIONS == []  # each was taken by its run


def test_an_exponent_is_the_slope(benchmark_module):
    scaling = benchmark_module("scaling")
    sizes = [100, 200, 400]
    assert scaling.slope(sizes, [3e-3 * n**1.2 for n in sizes]) == pytest.approx(1.2)
    assert np.isnan(scaling.slope([100], [1.0]))


def test_a_contender_that_fails_leaves_a_row(benchmark_module, data_folder, report_of, monkeypatch):
    scaling = benchmark_module("scaling")
    rounds = benchmark_module("harness.rounds")

    class Failing(InProcess):
        def compete(self, case, data, schedule, contenders):
            results = super().compete(case, data, schedule, contenders)
            if "N = 360" in results:
                results["N = 360"] = rounds.Result(failure="the process died")
            return results

        answers = compete

    monkeypatch.setattr(scaling, "Field", Failing)
    report = report_of(scaling, "--data", data_folder, "--sets", "kin40k", "--cases", "network")
    (rows,) = tables_of(report)
    assert [row["total (s)"] == "failed" for row in rows] == [False, True]
    assert "- N = 360 failed on kin40k, network: the process died" in report


def test_iterative_is_within_its_certificates(benchmark_module, data_folder, report_of, tmp_path):
    iterative = benchmark_module("iterative")
    flags = ["--data", data_folder, "--threads", "1", "--cache", tmp_path]
    report = report_of(iterative, *flags)
    everything, errors, counts, early = tables_of(report)
    for row in everything:
        assert float(row["residual"]) <= iterative.TOLERANCE
        assert float(row["ratio"]) > 1
    for row in errors:
        assert float(row["largest error / v"]) <= iterative.TOLERANCE
        assert float(row["least error / v"]) > -1e-10
        assert float(row["off"]) < 5
    assert [row["until"] for row in counts] == ["residual", "certified"] * 2
    assert all(float(row["ratio"]) > 1 for row in counts)
    assert [row["products"] for row in early] == ["5", "20", "80"] * 2
    assert report.count(": met") == 6
    assert "not met" not in report
    # the cached network gives the same numbers
    again = tables_of(report_of(iterative, *flags, "--rows", "0"))
    assert again == [errors, counts, early]


def test_iterative_says_when_an_error_is_above_its_certificate(
    benchmark_module, data_folder, report_of, monkeypatch
):
    iterative = benchmark_module("iterative")
    exact = iterative.exact

    def wrong(laplace, test):
        truth = exact(laplace, test)
        return replace(truth, variance=0.999 * truth.variance)

    monkeypatch.setattr(iterative, "exact", wrong)
    report = report_of(iterative, "--data", data_folder, "--threads", "1", "--rows", "0")
    assert report.count("within their certificate: not met") == 2


@pytest.mark.parametrize("name", ["exact", "float32", "sparse", "iterative"])
def test_every_stage_of_the_gpu_benchmark_passes_its_checks(benchmark_module, name):
    stages = benchmark_module("gpu_stages")
    record = stages.STAGES[name](CPU, True)
    assert {check.name for check in record.checks} >= {"full size"}
    assert ("dense" in {check.name for check in record.checks}) == (name != "float32")
    for check in record.checks:
        assert check.passed, check
    assert all(part.seconds > 0 for part in record.parts)
    assert sum(part.flops > 0 for part in record.parts) >= 1
    assert stages.Record.from_json(json.dumps(asdict(record))) == record


@pytest.mark.parametrize("wrong", ["precision", "noise"])
def test_a_wrong_posterior_does_not_pass(benchmark_module, wrong):
    stages = benchmark_module("gpu_stages")
    network = stages.make_network({"kind": "mlp", "sizes": [6, 8, 8, 3]}, CPU)
    problem = stages.Problem(network, stages.normal(CPU, 1, 20, 6), "gaussian")
    test = stages.normal(CPU, 2, 5, 6)

    def checks(laplace):
        return [
            stages.dense_check(problem, laplace, test),
            stages.full_size_check(problem, laplace, 1e-6),
        ]

    assert all(check.passed for check in checks(problem.laplace(keep_factors=True)))
    laplace = problem.laplace(keep_factors=True)
    if wrong == "precision":
        names = laplace.training.linearized.parameter_names
        laplace.prior = lingp.priors.Isotropic(1.01).bind(names)
    else:
        laplace.likelihood = lingp.likelihoods.Gaussian(1.01 * stages.NOISE)
    assert not any(check.passed for check in checks(laplace))
    assert not stages.Check("nothing", float("nan"), 1.0).passed


def test_flops_of_a_pair_of_inputs(benchmark_module):
    stages = benchmark_module("gpu_stages")
    network = stages.make_network({"kind": "mlp", "sizes": [6, 8, 3]}, CPU)
    assert stages.pair_flops(network, 3) == 2 * (6 + 9 * 8 + 8)


def test_stages_run_in_processes_and_failures_are_told(benchmark_module, monkeypatch, capsys):
    gpu = benchmark_module("gpu")
    found = gpu.launched("rates", True, "cpu", 300)
    assert found.failure == ""
    assert found.record.facts["float64"] > 0

    def late(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", late)
    outcomes = {"exact": gpu.launched("exact", True, "cpu", 7)}
    died = SimpleNamespace(returncode=1, stdout="", stderr="Traceback\nMemoryError: too much")
    monkeypatch.setattr(subprocess, "run", lambda *a, **o: died)
    outcomes["sparse"] = gpu.launched("sparse", True, "cpu", 7)
    outcomes["float32"] = gpu.launched("float32", True, "cpu", 0)
    capsys.readouterr()
    report = gpu.report(outcomes, found.record.facts, 1.0)
    (rows,) = tables_of(report)
    assert [row["part"] for row in rows] == ["failed"] * 3
    assert "no answer within 7 s" in report
    assert "exit status 1: MemoryError: too much" in report
    assert "no time left" in report


def test_a_check_that_fails_fails_the_run(benchmark_module, report_of, monkeypatch):
    gpu, stages = benchmark_module("gpu"), benchmark_module("gpu_stages")
    record = stages.Record("a stage", parts=[stages.Part("work", 0.1, 1e9)])
    record.checks = [stages.Check("dense", 1e-9, 1e-6)]
    rates = stages.Record("rates", facts={"float64": 1e11, "copy": 1e10, "device": "a card"})

    def launched(name, quick, device, limit):
        return gpu.Outcome(rates if name == "rates" else record, "", 1.0)

    monkeypatch.setattr(gpu, "launched", launched)
    report = report_of(gpu, "--only", "exact")
    row = tables_of(report)[0][0]
    assert (row["TFLOP/s"], row["of GEMM"]) == ("0.01", "10 %")
    assert "WRONG" not in report
    record.checks[0].value = 1e-3
    with pytest.raises(SystemExit, match="1"):
        report_of(gpu, "--only", "exact")
