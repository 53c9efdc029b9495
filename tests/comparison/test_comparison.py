"""Candidates compared by evidence: values of the trained ones, failures kept, ranks, picture."""

import dataclasses
import math

import pytest
import torch
from scipy.stats import kendalltau, spearmanr
from torch import nn

import lingp
from lingp.comparison import compare_by_evidence
from lingp.training import train_with_evidence

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

QUICK = {"steps": 40, "updates": 2, "progress": False}


def mlp(width, depth=1, seed=None):
    if seed is not None:
        torch.manual_seed(seed)
    layers, size = [], 1
    for _ in range(depth):
        layers += [nn.Linear(size, width), nn.Tanh()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, 1)).double()


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(60, 1, generator=generator, dtype=torch.float64) * 4 - 2
    y = (2 * x).sin() + 0.1 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
    return x[:40], y[:40], x[40:], y[40:]


@pytest.fixture(scope="module")
def compared(data):
    x, y, x_test, y_test = data
    candidates = {
        "linear": lambda: mlp(1, depth=0),
        "3 units": lambda: mlp(3),
        "8 units": lambda seed: mlp(8, seed=seed),
        "broken": lambda: Exploding(),
    }
    return compare_by_evidence(candidates, x, y, restarts=2, X_test=x_test, y_test=y_test, **QUICK)


class Exploding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        raise FloatingPointError("this network explodes")


def test_values_are_those_of_the_trained_candidates(compared, data):
    for candidate in compared.candidates[:-1]:
        run, gp = candidate.best_run, candidate.gp
        assert run.evidence == pytest.approx(gp.log_marginal_likelihood().item(), rel=1e-12)
        assert run.num_parameters == sum(p.numel() for p in candidate.trained.net.parameters())
        test = gp.predict(data[2], progress=False).log_prob(data[3]).mean()
        assert run.test_log_likelihood == pytest.approx(float(test), rel=1e-12)
        assert 0 < run.effective_parameters <= run.num_parameters
        assert run.seconds > 0
        assert run.evidence == max(r.evidence for r in candidate.runs)


def test_candidates_are_sorted_and_the_best_is_the_first(compared):
    evidences = [c.evidence for c in compared.candidates[:-1]]
    assert evidences == sorted(evidences, reverse=True)
    assert compared.best is compared.candidates[0].trained
    assert compared["linear"].evidence < compared["8 units"].evidence  # a sine is no line


def test_restarts_differ_and_repeat(compared, data):
    runs = compared["3 units"].runs
    assert len(runs) == 2
    assert runs[0].evidence != runs[1].evidence
    before = torch.get_rng_state()
    again = compare_by_evidence({"3 units": lambda: mlp(3)}, *data[:2], restarts=2, **QUICK)
    assert torch.equal(before, torch.get_rng_state())
    assert [r.evidence for r in again["3 units"].runs] == [r.evidence for r in runs]


def test_a_failure_is_shown_and_not_dropped(compared):
    broken = compared.candidates[-1]
    assert broken.name == "broken"
    assert broken.trained is None
    assert math.isnan(broken.evidence)
    assert "this network explodes" in broken.failure
    assert "2 of 2 runs" in str(compared)
    assert len(compared.candidates) == 4


def test_ranks_are_those_of_scipy(compared):
    fine = compared.candidates[:-1]
    evidence = [c.evidence for c in fine]
    test = [c.test_log_likelihood for c in fine]
    found = compared.rank_correlation
    assert found.number == 3
    assert found.spearman == pytest.approx(spearmanr(evidence, test).statistic)
    assert found.kendall == pytest.approx(kendalltau(evidence, test).statistic)
    assert compared.regret == pytest.approx(max(test) - test[0])


def test_table_has_a_row_for_each_in_order(compared):
    lines = str(compared).splitlines()
    names = [c.name for c in compared.candidates]
    assert [line[: len(n)] for n, line in zip(names, lines[1:], strict=False)] == names
    assert f"{compared.candidates[0].evidence:.2f}" in lines[1]
    assert "Spearman" in lines[-2]


def test_scatter_of_evidence_and_test_log_likelihood(compared):
    ax = lingp.plots.evidence_comparison(compared)
    points = {tuple(line.get_xydata()[0]) for line in ax.lines}
    for candidate in compared.candidates[:-1]:
        for run in candidate.runs:
            assert (run.evidence / 40, run.test_log_likelihood) in points
    texts = [t.get_text() for t in ax.texts]
    assert set(texts) == {"linear", "3 units", "8 units", "× failed: broken"}
    assert "evidence" in ax.get_xlabel()
    assert "test" in ax.get_ylabel()
    matplotlib.pyplot.close(ax.figure)


def test_dots_without_test_data(data):
    x, y = data[:2]
    given = {"3 units": mlp(3, seed=0), "broken": Exploding(), "8 units": mlp(8, seed=0)}
    found = compare_by_evidence(given, x, y, **QUICK)
    assert found.rank_correlation is None
    assert found.regret is None
    figure, own = matplotlib.pyplot.subplots()
    ax = lingp.plots.evidence_comparison(found, ax=own)
    assert ax is own
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == [c.name for c in found.candidates]
    assert names[-1] == "broken"
    assert "× failed" in [t.get_text() for t in ax.texts]
    matplotlib.pyplot.close(figure)


def test_trained_objects_are_taken_as_they_are(data):
    x, y = data[:2]
    trained = train_with_evidence(mlp(3, seed=0), x, y, mean="network", **QUICK)
    gp = lingp.LinearizedGP(mlp(2, seed=1), prior=1.0).fit(x, y, progress=False)
    found = compare_by_evidence({"trained": trained, "gp": gp})
    assert found["trained"].trained is trained
    assert found["gp"].trained is gp
    assert found["gp"].evidence == pytest.approx(gp.log_marginal_likelihood().item(), rel=1e-12)
    assert math.isnan(found["gp"].best_run.seconds)


def test_a_module_is_left_alone_and_trained_with_the_options(data):
    x, y = data[:2]
    net = mlp(3, seed=0)
    before = [p.clone() for p in net.parameters()]
    found = compare_by_evidence({"net": net}, x, y, prior=lingp.priors.Layerwise(1.0), **QUICK)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert isinstance(found.best.prior, lingp.priors.Layerwise)
    assert len(found.best.history) == 2


def test_what_cannot_be_compared_is_refused(data):
    x, y = data[:2]
    gp = lingp.LinearizedGP(mlp(2, seed=1), prior=1.0).fit(x, y, progress=False)
    fewer = lingp.LinearizedGP(mlp(2, seed=1), prior=1.0).fit(x[:30], y[:30], progress=False)
    other = lingp.LinearizedGP(mlp(2, seed=1), prior=1.0).fit(x, y + 1, progress=False)
    refit = lingp.LinearizedGP(mlp(2, seed=1), mean="refit").fit(x, y, progress=False)
    for wrong, said in ((fewer, "30 rows"), (other, "different targets"), (refit, "refit mean")):
        with pytest.raises(ValueError, match=said):
            compare_by_evidence({"gp": gp, "other": wrong})


def test_training_that_was_stopped_says_so_under_the_table(data):
    x, y = data[:2]
    trained = dataclasses.replace(
        train_with_evidence(mlp(2, seed=0), x, y, **QUICK), stopped="the loss became nan"
    )
    found = compare_by_evidence({"a": trained})
    assert found["a"].best_run.stopped == "the loss became nan"
    assert "a: stopped, the loss became nan" in str(found).splitlines()


def test_bad_arguments_are_named(data):
    x, y = data[:2]
    with pytest.raises(ValueError, match="candidates: there are none"):
        compare_by_evidence({}, x, y)
    with pytest.raises(TypeError, match=r"candidates\['a'\]: expected a network.*got str"):
        compare_by_evidence({"a": "net"}, x, y)
    with pytest.raises(ValueError, match="X: missing"):
        compare_by_evidence({"a": mlp(2)})
    with pytest.raises(ValueError, match=r"restarts: 3, but.*give a function"):
        compare_by_evidence({"a": mlp(2)}, x, y, restarts=3)
    with pytest.raises(ValueError, match="restarts: expected at least 1"):
        compare_by_evidence({"a": mlp(2)}, x, y, restarts=0)
    with pytest.raises(ValueError, match="give both or neither"):
        compare_by_evidence({"a": mlp(2)}, x, y, X_test=x)
    with pytest.raises(RuntimeError, match="none of 1 could be trained; a: FloatingPointError"):
        compare_by_evidence({"a": Exploding()}, x, y, **QUICK)
