"""The CRISPR benchmark runs, goes on with what it has, and compares with the re-run's splits."""

import json
import sys

import numpy as np
import pytest
import torch
from scripts import run_quick

HEADER = (
    "dataset,likelihood,method,head,beta,seed,approx,n_train,test_loglik,test_loglik_bayes,"
    "test_loglik_bayes_mean,test_loglik_bayes_mc,test_loglik_bayes_mc_lse,test_mse_standardised,"
    "prior_prec_opt,sigma_noise"
)
RERUN = (
    "crispr_flow_hek293,heteroscedastic,map,natural,,1,kron,80,-0.3,-0.2,,,-0.16,0.7,100,",
    "crispr_flow_hek293,heteroscedastic,map,natural,,3,kron,80,-0.5,-0.4,,,-0.36,0.7,100,",
    "crispr_flow_hek293,heteroscedastic,betanll,gaussian,0.5,1,kron,80,-0.4,,,,,0.7,100,",
    "crispr_flow_hek293,heteroscedastic,vi,gaussian,,14,kron,80,-9,,,,,0.7,100,",
    "crispr_survival_a375,heteroscedastic,map,natural,,1,kron,80,-7,-7,,,-7,0.7,100,",
)


@pytest.fixture
def folder(tmp_path):
    """120 guides of 5 bases, the first of them sometimes N; the noise depends on the second."""
    random = np.random.default_rng(0)
    x = random.integers(0, 4, size=(120, 5)).astype(np.uint8)
    x[:6, 0] = 255
    y = 0.3 * (x[:, 1] == 0) + (0.1 + 0.2 * (x[:, 2] == 1)) * random.normal(size=120)
    rows = random.permutation(120)
    np.savez(
        tmp_path / "crispr_flow_hek293.npz",
        x=x,
        y_mean=y.astype(np.float32),
        immer2023_test_index=[rows[:30], rows[30:60]],
        immer2023_valid_index=[rows[60:80], rows[80:100]],
    )
    (tmp_path / "ref_immer2023_rerun_per_seed.csv").write_text("\n".join([HEADER, *RERUN]) + "\n")
    return tmp_path


def test_every_row_is_scored_and_kept(tmp_path, folder, benchmark_module, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    output, raw, image = (tmp_path / name for name in ("report.md", "raw.json", "plot.png"))
    flags = ["--threads", "1", "--data", folder, "--output", output, "--raw", raw]
    run_quick("crispr.py", *flags, "--plot", image)
    (record,) = json.loads(raw.read_text())["flow_hek293"].values()
    rows = {
        f"{m}, by {c}"
        for m in ("MAP", "mixture", "natural", "delta")
        for c in ("validation", "evidence")
    }
    assert set(record["ll"]) == set(record["rmse"]) == {*rows, "homoscedastic, by evidence"}
    assert all(-3 < value < 2 for value in record["ll"].values())
    assert all(0.05 < value < 0.5 for value in record["rmse"].values())
    assert set(record["bins"]) == {"mixture", "delta"}
    for binned in record["bins"].values():
        assert binned["predicted"] == sorted(binned["predicted"])
        assert len(binned["found"]) == 10
    assert image.read_bytes().startswith(b"\x89PNG")
    report = output.read_text(encoding="utf-8")
    assert "β-NLL 0.5: MAP" in report
    # a split that is there already is not done again
    record["ll"]["mixture, by validation"] = 1.25
    raw.write_text(json.dumps({"flow_hek293": {"0": record}}))
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["crispr.py", "--quick", *map(str, flags)])
    benchmark_module("crispr").main()
    torch.set_num_threads(threads)
    assert "flow_hek293: mixture, by validation 1.250, ahead of" in capsys.readouterr().out


def test_bases_are_coded_without_the_last_category(benchmark_module):
    data = benchmark_module("crispr_data")
    x = np.array([[0, 0], [3, 3], [255, 2]], dtype=np.uint8)
    expected = [[1, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1]]
    np.testing.assert_array_equal(data.one_hot(x), expected)


def test_splits_are_disjoint_and_standardised_without_the_test_rows(benchmark_module, folder):
    split = benchmark_module("crispr_data").split(folder, "flow_hek293", 1)
    assert [len(part.y) for part in (split.train, split.valid, split.test)] == [70, 20, 30]
    x = np.concatenate([split.train.x, split.valid.x])
    y = np.concatenate([split.train.y, split.valid.y])
    assert x.shape[1] == 4 + 4 * 3
    np.testing.assert_allclose([x.mean(0), x.std(0)], [[0] * 16, [1] * 16], atol=1e-12)
    np.testing.assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-12)
    assert abs(split.test.y.mean()) > 1e-3


def test_the_rerun_is_read_by_split(benchmark_module, folder):
    found = benchmark_module("crispr_data").rerun(folder, "flow_hek293")
    assert found == {
        "natural, grid search: MAP": {0: -0.3, 2: -0.5},
        "natural, grid search: posterior predictive": {0: -0.2, 2: -0.4},
        "natural, grid search: mixture of draws": {0: -0.16, 2: -0.36},
        "β-NLL 0.5: MAP": {0: -0.4},
    }
    assert benchmark_module("crispr_data").rerun(folder / "nowhere", "flow_hek293") == {}


def test_gains_are_on_common_splits(benchmark_module, folder):
    rerun = benchmark_module("crispr_data").rerun(folder, "flow_hek293")
    own = {index: {"ll": {"ours": value}} for index, value in {0: -0.1, 1: 5.0, 2: -0.2}.items()}
    report = benchmark_module("crispr_report")
    lines = report._beside("flow_hek293", own, rerun, "ours").splitlines()
    assert (
        "ahead of the best of the re-run, natural, grid search: mixture of draws -0.260" in lines[0]
    )
    (row,) = [line for line in lines if "natural, grid search: mixture of draws " in line[2:]][-1:]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    # gains 0.06 and 0.16: mean 0.11, standard error 0.05
    assert cells[1:] == ["2", "-0.260 ± 0.100", "2", "0.110 ± 0.050"]


def test_bins_find_variance_where_it_is_predicted(benchmark_module):
    report = benchmark_module("crispr_report")
    random = np.random.default_rng(0)
    epistemic = random.permutation(np.geomspace(0.01, 10, 200_000))
    aleatoric = random.uniform(0.5, 1.5, size=len(epistemic))
    off = random.normal(size=len(epistemic)) * np.sqrt(epistemic + aleatoric)
    found = report.bins(epistemic, aleatoric, off)
    predicted = np.array(found["predicted"])
    # squared errors have a standard deviation of √2 times their mean
    error = np.sqrt(2) * (predicted + 1.5) / np.sqrt(20_000)
    assert (np.abs(np.array(found["found"]) - predicted) < 4 * error).all()
