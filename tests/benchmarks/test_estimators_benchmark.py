"""The estimators' benchmark: its scores, its forest, where it says lingp stands; and it runs."""

import json
import math

import numpy as np
import pytest
from scripts import run_quick


def made_split(benchmark_module, num_train=60, num_test=20, signal=0.0, seed=0):
    """Targets of unit noise, and a line of this slope in the first of two inputs."""
    datasets = benchmark_module("datasets")
    random = np.random.default_rng(seed)
    x = random.normal(size=(num_train + num_test, 2))
    y = signal * x[:, 0] + random.normal(size=len(x))
    parts = [
        datasets.Rows(x[:num_train], y[:num_train]),
        datasets.Rows(x[:0], y[:0]),
        datasets.Rows(x[num_train:], y[num_train:]),
    ]
    return datasets.Split(*parts, target_mean=5.0, target_std=3.0)


def test_scores_are_in_the_units_of_the_data(benchmark_module):
    methods, datasets = benchmark_module("estimators_methods"), benchmark_module("datasets")
    rows = datasets.Rows(np.array([[0.0], [1.0]]), np.array([0.5, -3.0]))
    train = datasets.Rows(np.array([[1.0], [4.0]]), np.array([0.0, 1.0]))
    split = datasets.Split(train, train, rows, target_std=10.0)
    mean, std = np.array([0.0, 0.0]), np.array([1.0, 2.0])
    found = methods.scored(methods.normal(mean, std, rows.y, seconds=7.0), split)
    # targets 5 and -30 under normals of standard deviations 10 and 20
    each = [
        0.5 * math.log(2 * math.pi * s**2) + 0.5 * (y / s) ** 2 for y, s in ((5, 10), (-30, 20))
    ]
    assert found["nll"] == pytest.approx(sum(each) / 2, rel=1e-12)
    assert found["new"] == pytest.approx(each[0], rel=1e-12)  # the second is a training row
    assert found["rmse"] == pytest.approx(math.sqrt((25 + 900) / 2), rel=1e-12)
    assert found["coverage"] == 1.0  # 30 < 1.645 * 20
    assert found["interval"] == pytest.approx(2 * 1.6448536 * 15, rel=1e-6)
    assert found["seconds"] == 7.0


def by_hand(forest, x, y, at, trees_of_row):
    """Weights of the training rows, tree by tree and row by row."""
    nodes, nodes_at = forest.apply(x), forest.apply(at)
    counts = [np.bincount(rows, minlength=len(y)) for rows in forest.estimators_samples_]
    weights = np.zeros((len(at), len(y)))
    for row in range(len(at)):
        trees = trees_of_row(row)
        for tree in trees:
            inside = counts[tree] * (nodes[:, tree] == nodes_at[row, tree])
            weights[row] += inside / inside.sum() / len(trees)
    return weights


def test_the_forests_weights_and_quantiles_are_those_of_its_leaves(benchmark_module):
    forests = benchmark_module("estimators_forest")
    random = np.random.default_rng(1)
    x, at = (random.normal(size=(n, 3)).astype(np.float32) for n in (40, 9))
    y = 100 + x[:, 0] + 0.3 * random.normal(size=40)
    made = forests._fit(x, y, seed=3, trees=12, leaf=3)
    expected = by_hand(made.forest, x, y, at, lambda row: range(12))
    weights = made.weights(at).toarray()
    np.testing.assert_allclose(weights, expected, atol=1e-14)
    mean, variance = made.moments(at)
    np.testing.assert_allclose(mean, made.forest.predict(at), rtol=1e-13)
    spread = (expected * (y - (expected @ y)[:, None]) ** 2).sum(axis=1)
    np.testing.assert_allclose(variance - made.share * made.error, spread, atol=1e-11)
    for level, found in zip((0.05, 0.5, 0.95), made.quantiles(at, (0.05, 0.5, 0.95)), strict=True):
        for row, value in enumerate(found):
            assert expected[row][y <= value].sum() >= level - 1e-9
            assert expected[row][y < value].sum() < level


def test_the_forest_is_judged_by_trees_that_have_not_seen_a_row(benchmark_module):
    forests = benchmark_module("estimators_forest")
    random = np.random.default_rng(2)
    x = random.normal(size=(30, 2)).astype(np.float32)
    y = x[:, 0] + 0.3 * random.normal(size=30)
    made = forests._fit(x, y, seed=0, trees=25, leaf=1)
    samples = made.forest.estimators_samples_

    def unseen(row):
        return [tree for tree in range(25) if row not in samples[tree]]

    assert all(unseen(row) for row in range(30))
    weights = by_hand(made.forest, x, y, x, unseen)
    assert (np.diag(weights) == 0).all()
    squares = (y - weights @ y) ** 2
    assert made.error == pytest.approx(squares.mean(), rel=1e-12)
    variance = weights @ y**2 - (weights @ y) ** 2
    scores = {}
    for share in forests.SHARES:
        total = variance + share * squares.mean()
        scores[share] = -0.5 * (np.log(2 * np.pi * total) + squares / total).mean()
    assert made.share == max(scores, key=scores.get)
    assert made.score == pytest.approx(max(scores.values()), rel=1e-10)
    assert forests.fit(x, y, 0, 25).score >= made.score


@pytest.mark.parametrize("name", ["GaussianProcessRegressor", "BayesianRidge", "forest, residuals"])
def test_peers_intervals_are_of_targets_with_their_noise(benchmark_module, name):
    methods = benchmark_module("estimators_methods")
    work = methods.Work("made", made_split(benchmark_module), 0, quick=True)
    found = methods.REGRESSION[name](work)
    width = (found.upper - found.lower).mean() / (2 * 1.645)
    assert width == pytest.approx(1.0, abs=0.25)  # standard deviation of 60 unit normals: ± 0.09
    assert found.seconds > 0


def test_the_conditional_quantiles_follow_the_inputs(benchmark_module):
    methods = benchmark_module("estimators_methods")
    split = made_split(benchmark_module, num_train=150, signal=10.0)
    found = methods.forest_quantiles(methods.Work("made", split, 0, quick=True))
    middle = (found.lower + found.upper) / 2
    assert np.corrcoef(middle, split.test.x[:, 0])[0, 1] > 0.9
    assert (found.lower < found.upper).all()


def test_our_density_is_that_of_the_estimators_mean_and_deviation(benchmark_module, monkeypatch):
    methods = benchmark_module("estimators_methods")
    estimators = benchmark_module("lingp.estimators")
    split = made_split(benchmark_module, num_train=40, signal=2.0)
    monkeypatch.setattr(methods, "QUICK_STEPS", 10)
    found = methods.lingp_regressor(methods.Work("made", split, 4, quick=True))
    model = estimators.LinearizedGPRegressor(steps=10, random_state=4)
    mean, std = model.fit(split.train.x, split.train.y).predict(split.test.x, return_std=True)
    expected = methods.normal(mean, std, split.test.y, seconds=0.0)
    for kind in ("log_density", "point", "lower", "upper"):
        np.testing.assert_allclose(getattr(found, kind), getattr(expected, kind), rtol=1e-7)


def test_classifiers_learn_from_validation_rows_too(benchmark_module):
    methods, datasets = benchmark_module("estimators_methods"), benchmark_module("datasets")
    one = datasets.Rows(np.zeros((3, 2)), np.zeros(3, dtype=int))
    other = datasets.Rows(np.ones((2, 2)), np.ones(2, dtype=int))
    rows = methods.Work("made", datasets.Split(one, other, one), 0, quick=True).rows()
    assert rows.x.shape == (5, 2)
    assert rows.y.tolist() == [0, 0, 0, 1, 1]


def records(**nll):
    """Splits of one set, from the NLLs of each method; None where a split was not run."""
    number = len(next(iter(nll.values())))
    return {
        index: {
            method.replace("_", " "): {"nll": found[index], "seconds": 1.0}
            for method, found in nll.items()
            if found[index] is not None
        }
        for index in range(number)
    }


def test_standing_is_paired_on_the_splits_that_both_have(benchmark_module):
    reports = benchmark_module("estimators_report")
    splits = records(
        lingp=[1.0, 2.0, 3.2, -9.0], ridge=[0.9, 2.1, 3.0, None], forest=[5.0, 6.0, 7.0, 8.0]
    )
    found = reports.standing(splits, "lingp", ["lingp", "ridge", "forest"])
    differences = np.array([0.1, -0.1, 0.2])
    assert (found.num_splits, found.rival) == (3, "ridge")
    assert found.difference == pytest.approx(differences.mean())
    assert found.paired_error == pytest.approx(differences.std(ddof=1) / math.sqrt(3))
    assert found.rival_error == pytest.approx(np.std([0.9, 2.1, 3.0], ddof=1) / math.sqrt(3))
    assert found.within_paired
    assert found.within_best
    assert not found.is_best
    assert not found.is_worst
    alone = reports.standing(splits, "lingp", ["lingp", "forest"])
    assert (alone.num_splits, alone.is_best, alone.is_worst) == (4, True, False)
    assert alone.difference == pytest.approx(np.mean([-4.0, -4.0, -3.8, -17.0]))
    assert reports.standing(splits, "lingp", ["lingp", "other"]) is None
    assert reports.standing(splits, "other", ["lingp", "other"]) is None


def test_rows_that_are_training_rows_too_can_be_left_out(benchmark_module):
    reports = benchmark_module("estimators_report")
    made = {"wine": records(lingp=[1.0, 1.1], ridge=[-5.0, -5.0])}
    for found in made["wine"].values():
        for method, new in (("lingp", 1.0), ("ridge", 2.0)):
            found[method]["new"] = new
    assert not reports.standing(made["wine"], "lingp", ["lingp", "ridge"]).is_best
    assert reports.standing(made["wine"], "lingp", ["lingp", "ridge"], "new").difference == -1.0
    text = reports.comparison(made, "lingp", ["lingp", "ridge"], score="new")
    assert "both have, by NLL of new rows:" in text
    assert "- best on 1 of 1 sets (wine)" in text


def test_one_standard_error_is_of_the_difference_or_of_the_best(benchmark_module):
    reports = benchmark_module("estimators_report")
    # always behind by 0.1, which is little beside the spread of the splits
    splits = records(lingp=[1.1, 2.1, 3.1], ridge=[1.0, 2.0, 3.0])
    found = reports.standing(splits, "lingp", ["lingp", "ridge"])
    assert not found.within_paired
    assert found.within_best
    assert found.is_worst


def test_the_report_counts_sets(benchmark_module):
    reports = benchmark_module("estimators_report")
    made = {
        "yacht": records(lingp=[1.0, 1.1], ridge=[2.0, 2.0], forest=[3.0, 3.0]),
        "wine": records(lingp=[4.0, 4.1], ridge=[2.0, 2.0], forest=[3.0, 3.0]),
    }
    text = reports.comparison(made, "lingp", ["lingp", "ridge", "forest"], target=1)
    assert "- best on 1 of 2 sets (yacht)" in text
    assert "paired difference on 1 of 2 (target ≥ 1: met)" in text
    assert "best row's own mean on 1 of 2 (target ≥ 1: met)" in text
    assert "- worst on 1 (wine) (target 0: not met)" in text
    assert "target ≥ 2: not met" in reports.comparison(made, "lingp", ["lingp", "ridge"], 2)
    table = reports.score_table(made, ["lingp", "ridge", "other"], ["nll"])
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert rows[0] == ["yacht", "lingp", "2", "**1.050 ± 0.050**", "1"]
    assert rows[3] == ["wine", "ridge", "2", "**2.000 ± 0.000**", "1"]
    assert len(rows) == 4


def test_methods_are_chosen_by_kind_or_name(benchmark_module):
    estimators = benchmark_module("estimators")
    ours, peers = (estimators.chosen_methods(kind) for kind in ("lingp", "peers"))
    assert ours == ["lingp", "lingp, heteroscedastic", "lingp, evidence alone"]
    assert sorted(ours + peers) == sorted(estimators.chosen_methods(None))
    both = "BayesianRidge;forest, quantiles"
    assert estimators.chosen_methods(both) == ["BayesianRidge", "forest, quantiles"]
    with pytest.raises(SystemExit, match="no method oracle; there are: lingp; "):
        estimators.chosen_methods("lingp;oracle")


def test_quick_run_joins_earlier_numbers_and_reports(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 2))
    rows = random.permutation(60)
    np.savez(tmp_path / "uci_yacht.npz", X=x, y=x[:, 0] + 0.1 * x[:, 1], test_index=[rows[:10]])
    labels = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5)
    index = {"immer2021_test_index": [rows[:10]], "immer2021_valid_index": [rows[20:30]]}
    np.savez(tmp_path / "cls_glass.npz", X=x, y=labels, **index)
    scores = {"nll": -50.0, "new": -50.0, "rmse": 0.1, "coverage": 0.9, "interval": 1.0}
    early = tmp_path / "early.json"
    early.write_text(json.dumps({"yacht": {"0": {"BayesianRidge": {**scores, "seconds": 2.0}}}}))
    raw, output = tmp_path / "raw" / "all.json", tmp_path / "report.md"
    flags = ["--add", early, "--methods", "lingp;LogisticRegression", "--data", tmp_path]
    run_quick("estimators.py", *flags, "--raw", raw, "--output", output)
    found = json.loads(raw.read_text())
    assert set(found["yacht"]["0"]) == {"lingp", "BayesianRidge"}
    assert set(found["glass"]["0"]) == {"lingp", "LogisticRegression"}
    assert found["yacht"]["0"]["BayesianRidge"]["nll"] == -50.0
    for kind in found["glass"]["0"].values():
        assert 0 < kind["nll"] < np.log(3) + 0.3
        assert kind["seconds"] > 0
    report = output.read_text(encoding="utf-8")
    assert "failed" not in report
    assert "| yacht | BayesianRidge |      1 | **-50.000** |" in report
    assert "| yacht | BayesianRidge      |      1 |" in report  # what lingp is compared with
