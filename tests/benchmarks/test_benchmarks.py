"""The benchmarks run, print a table of the right shape, and agree with dense float64 Jacobians."""

import json

import numpy as np
import pytest
from scripts import run_quick

from lingp.data import load_yacht


def run(script, *flags, tmp_path):
    """The report a benchmark writes, as printed and as lines."""
    output = tmp_path / "report.md"
    flags = ("--output", output, "--venvs", tmp_path / "none", *flags)
    printed = run_quick(script, "--threads", 1, *flags)
    report = output.read_text(encoding="utf-8")
    assert printed.strip() == report.strip()
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


def test_weight_gram_by_layers_and_by_columns_agree(tmp_path):
    rows = table_of(run("weight_gram.py", tmp_path=tmp_path))
    assert len(rows) == 2
    for row in rows:
        assert float(row["by layers (s)"]) > 0
        assert float(row["difference"]) < 1e-14


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


def test_two_processes_agree_with_one(tmp_path):
    rows = table_of(run("distributed.py", tmp_path=tmp_path))
    assert {row["method"] for row in rows} == {"weight space", "sparse"}
    assert len(rows) == 2 * 3
    assert all(float(row["difference"]) < 1e-9 and float(row["ratio"]) > 0 for row in rows)


def test_an_unknown_contender_is_refused(tmp_path):
    with pytest.raises(AssertionError, match="no contender nobody; there are: lingp, laplace"):
        run("exact.py", "--only", "nobody", tmp_path=tmp_path)


@pytest.fixture
def data_folder(tmp_path):
    """A small set of each kind: two informative columns, one of noise, one constant."""
    random = np.random.default_rng(0)
    x = np.column_stack([random.normal(size=(60, 3)), np.ones(60)])
    rows = random.permutation(60)
    np.savez(
        tmp_path / "cls_glass.npz",
        X=3 + 2 * x,
        y=(x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5),
        immer2021_test_index=[rows[:10], rows[10:20]],
        immer2021_valid_index=[rows[20:30], rows[30:40]],
    )
    yacht = load_yacht()
    np.savez(tmp_path / "uci_yacht.npz", X=yacht.X, y=yacht.y, test_index=yacht.test_index)
    return tmp_path


def test_softmax_posteriors_agree_with_the_dense_ones(tmp_path):
    only = "lingp weight space,lingp function space"
    report = run("curvature_error.py", "--only", only, tmp_path=tmp_path)
    rows = table_of(report)
    assert len(rows) == 2 * 4
    for row in rows:
        for quantity in ("covariance", "evidence", "gradient"):
            assert float(row[quantity]) < 1e-12
    assert "not met" not in report


def test_classifiers_are_scored_and_every_number_is_kept(tmp_path, data_folder):
    raw = tmp_path / "raw" / "numbers.json"
    flags = ["--only", "lingp,lingp valid", "--data", str(data_folder), "--sets", "glass"]
    report = run("likelihoods.py", *flags, "--raw", str(raw), tmp_path=tmp_path)
    assert "failed" not in report
    found = json.loads(raw.read_text())["glass"]["0"]
    assert set(found) == {"MAP", "lingp", "lingp valid"}
    for scores in found.values():
        assert 0 < scores["nll"] < np.log(3) + 0.2
        assert 0 <= scores["ece"] <= 1
        assert 0 <= scores["brier"] <= 2
        assert 0.3 < scores["accuracy"] <= 1
    assert f"{found['lingp']['nll']:.3f}" in report


def test_heteroscedastic_predictives_are_compared(tmp_path, data_folder):
    raw = tmp_path / "numbers.json"
    flags = ["--data", str(data_folder), "--raw", str(raw)]
    report = run("heteroscedastic.py", *flags, tmp_path=tmp_path)
    assert "| yacht | 1 " in report.replace("  ", " ")
    (record,) = json.loads(raw.read_text())["yacht"].values()
    assert {"MAP", "mixture", "natural", "delta", "homoscedastic exact"} <= set(record)
    assert all(np.isfinite(value) for value in record.values())


def test_splits_are_standardised_with_their_training_rows(benchmark_module, data_folder):
    datasets = benchmark_module("datasets")
    split = datasets.classification(data_folder, "glass", 1)
    assert split.num_classes == 3
    assert [len(rows.y) for rows in (split.train, split.valid, split.test)] == [40, 10, 10]
    np.testing.assert_allclose(split.train.x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(split.train.x.std(axis=0), [1, 1, 1, 0], atol=1e-12)
    assert abs(split.test.x.mean(axis=0)[:3]).max() > 1e-3

    yacht = load_yacht()
    split = datasets.regression(data_folder, "yacht", 3)
    np.testing.assert_allclose(split.train.y.std(), 1)
    in_units = split.target_mean + split.target_std * split.test.y
    np.testing.assert_allclose(np.sort(in_units), np.sort(yacht.y[yacht.test_index[3]]))


def test_missing_data_and_unknown_names_are_refused(benchmark_module, tmp_path):
    datasets = benchmark_module("datasets")
    with pytest.raises(SystemExit, match=r"no data in .*: name the folder by --data or LINGP_DATA"):
        datasets.folder(str(tmp_path / "nowhere"))


def test_scores_by_hand(benchmark_module):
    scores = benchmark_module("scores")
    p = np.array([[0.7, 0.3], [0.7, 0.3], [0.1, 0.9], [0.5, 0.5]])
    found = scores.classification(p, np.array([0, 1, 1, 0]))
    assert found["nll"] == pytest.approx(-np.log([0.7, 0.3, 0.9, 0.5]).mean())
    assert found["brier"] == pytest.approx((2 * 0.09 + 2 * 0.49 + 2 * 0.01 + 2 * 0.25) / 4)
    assert found["accuracy"] == 0.75
    # bins (10/15, 11/15]: two rows, confidence 0.7, half right; 0.9: right; 0.5: right
    assert found["ece"] == pytest.approx((2 * 0.2 + 0.1 + 0.5) / 4)
    mean, error = scores.mean_and_error([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / np.sqrt(3)))


@pytest.fixture
def image_folder(tmp_path):
    """Ten kinds of bright squares, and noise."""
    random = np.random.default_rng(0)
    labels = np.arange(200) % 10
    images = random.integers(0, 50, size=(200, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 4)
        image[8 * row : 8 * row + 8, 7 * column : 7 * column + 7] = 255
    np.savez(tmp_path / "mnist_t10k.npz", images=images, labels=labels)
    noise = random.integers(0, 256, size=(50, 28, 28)).astype(np.uint8)
    np.savez(tmp_path / "notmnist_t10k.npz", images=noise, labels=labels[:50])
    return tmp_path


@pytest.fixture
def sparse_folder(tmp_path):
    """Small sets under the names of those the benchmark of sparse posteriors reads."""
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 3))
    rows = random.permutation(60)
    np.savez(tmp_path / "uci_kin8nm.npz", X=x, y=np.sin(x[:, 0]), test_index=[rows[:10]])
    np.savez(
        tmp_path / "cls_digits.npz",
        X=x,
        y=(x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5),
        immer2021_test_index=[rows[:10]],
        immer2021_valid_index=[rows[10:20]],
    )
    return tmp_path


def test_sparse_posteriors_are_compared_with_the_exact_one(tmp_path, sparse_folder):
    pytest.importorskip("matplotlib")
    raw, image = tmp_path / "numbers.json", tmp_path / "error.png"
    flags = ["--data", str(sparse_folder), "--raw", str(raw), "--plot", str(image)]
    only = "lingp greedy,lingp pairs"
    report = run("sparse.py", *flags, "--only", only, "--sizes", "4,40", tmp_path=tmp_path)
    assert "failed" not in report
    rows = table_of(report)
    assert len(rows) == 2 * 2 * 2
    for row in rows:
        assert float(row["s"]) > 0
        outputs = 3 if row["set"] == "digits" and row["method"] != "lingp pairs" else 1
        assert int(row["features"]) == outputs * int(row["points"])
    # forty inducing inputs are all data there are in digits: exact to rounding
    (all_data,) = [r for r in rows if (r["set"], r["method"]) == ("digits", "lingp greedy")][1:]
    assert float(all_data["largest"]) < 1e-6
    records = json.loads(raw.read_text())
    (exact,) = [r for r in records if (r["set"], r["method"]) == ("digits", "exact")]
    assert exact["largest error"] == 0
    assert exact["far"] == exact["ratio"] == 1
    assert image.read_bytes().startswith(b"\x89PNG")


def test_images_are_scored(tmp_path, image_folder):
    raw = tmp_path / "numbers.json"
    flags = ["--data", str(image_folder), "--cache", str(tmp_path / "lenet.npz")]
    report = run("images.py", *flags, "--raw", str(raw), "--only", "lingp", tmp_path=tmp_path)
    assert "failed" not in report
    alone, ours = table_of(report)
    assert (alone["method"], ours["method"]) == ("MAP", "lingp")
    assert float(ours["peak (GiB)"]) > 0.1
    for scores in json.loads(raw.read_text()).values():
        assert 0 <= scores["auroc entropy"] <= 1
        assert 0 < scores["nll"] < np.log(10) + 0.5


def test_a_trained_network_is_kept_until_its_training_changes(
    benchmark_module, tmp_path, image_folder
):
    images, networks = benchmark_module("images"), benchmark_module("networks")
    (data,) = benchmark_module("datasets").images(image_folder, "mnist", 20)
    file = tmp_path / "cache" / "lenet.npz"
    made = networks.weights(images.trained_network(data, 1, file))
    written = file.stat().st_mtime_ns
    read = networks.weights(images.trained_network(data, 1, file))
    assert file.stat().st_mtime_ns == written
    for name, value in made.items():
        np.testing.assert_array_equal(read[name], value)
    other = networks.weights(images.trained_network(data, 2, file))
    assert any((other[name] != value).any() for name, value in made.items())


def test_images_come_in_disjoint_parts_between_zero_and_one(benchmark_module, image_folder):
    datasets = benchmark_module("datasets")
    first, second = datasets.images(image_folder, "mnist", 150, 50)
    assert first.x.shape == (150, 1, 28, 28)
    assert first.x.dtype == np.float32
    assert first.x.max() == 1
    together = np.concatenate([first.x, second.x]).reshape(200, -1)
    assert len(np.unique(together, axis=0)) == 200
    with pytest.raises(ValueError, match="mnist has 200 images, 201 were asked for"):
        datasets.images(image_folder, "mnist", 201)


def test_scores_of_latent_normals_by_hand(benchmark_module):
    scores = benchmark_module("scores")
    assert scores.auroc(np.array([0.0, 1.0]), np.array([1.0, 2.0])) == (1 + 1 + 0.5 + 1) / 4
    np.testing.assert_allclose(
        scores.entropy(np.array([[0.5, 0.5], [1.0, 0.0]])), [np.log(2), 0], atol=1e-15
    )
    found = scores.gaussian_nll(np.zeros(1), np.array([4.0]), np.array([2.0]))
    assert found == pytest.approx(0.5 * (np.log(8 * np.pi) + 1))
    # two classes: E softmax is E sigmoid of the difference, N(1, 2 - 2·0.5), by quadrature
    mean, covariance = np.array([[1.0, 0.0]]), np.array([[[1.0, 0.5], [0.5, 1.0]]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(50)
    exact = (weights / (1 + np.exp(-(1 + nodes)))).sum() / weights.sum()
    (found,) = scores.softmax_mixture(mean, covariance, num_draws=20000)
    # a sigmoid's standard deviation here is below 0.2: three standard errors of 20000 draws
    assert found[0] == pytest.approx(exact, abs=3 * 0.2 / np.sqrt(20000))
    nothing = scores.softmax_mixture(mean, np.zeros((1, 2, 2)))
    np.testing.assert_allclose(nothing[0, 0], 1 / (1 + np.exp(-1)), rtol=1e-12)


def test_serving_names_every_model_size_and_number_of_rows(tmp_path):
    rows = table_of(run("serving.py", "--turns", "2", tmp_path=tmp_path))
    assert len(rows) == 3 * 2 * 2
    assert all(float(row["median (ms)"]) > 0 for row in rows)


def test_traced_counts_what_a_call_passes(tmp_path):
    report = run("traced.py", "--functions", tmp_path=tmp_path)
    rows = {row["call"]: row for row in table_of(report)}
    assert "lingp: fit: models/linearized_gp.py fit, line" in report
    assert int(rows["lingp: next predict"]["functions"]) < int(
        rows["lingp: first predict"]["functions"]
    )
    assert int(rows["scikit-learn: predict"]["files"]) >= 1
