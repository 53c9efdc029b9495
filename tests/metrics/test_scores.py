"""Densities, intervals, calibration and detection, against hand-computed values and peers."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from lingp import LinearizedGP
from lingp.likelihoods import Gaussian, Heteroscedastic, Poisson
from lingp.metrics import (
    auroc,
    brier,
    calibration_error,
    coverage,
    coverage_curve,
    interval_score,
    nll,
    reliability,
)


def fitted(likelihood, num_outputs, y, missing="error"):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(1, 5), torch.nn.Tanh(), torch.nn.Linear(5, num_outputs)
    ).double()
    X = torch.linspace(-1, 1, len(y), dtype=torch.float64).unsqueeze(1)
    return LinearizedGP(net, likelihood, prior=1.0).fit(X, y, missing=missing).predict(X)


@pytest.fixture(scope="module")
def labels():
    return torch.arange(30) % 3


@pytest.fixture(scope="module")
def classes(labels):
    return fitted("categorical", 3, labels)


def test_nll_of_normals_is_scipys():
    y = torch.linspace(-1, 1, 9, dtype=torch.float64).sin().unsqueeze(1)
    prediction = fitted(Gaussian(noise=0.1), 1, y)
    law = stats.norm(prediction.mean.detach(), prediction.stddev.detach())
    expected = -law.logpdf(y)
    assert nll(prediction, y) == pytest.approx(expected.mean(), rel=1e-10)
    np.testing.assert_allclose(nll(prediction, y, reduction="none"), expected[:, 0], rtol=1e-10)


def test_nll_of_labels_is_sklearns(classes, labels):
    expected = log_loss(labels, classes.probs.detach())
    assert nll(classes, labels) == pytest.approx(expected, rel=1e-10)


def test_interval_score_by_hand():
    # alpha = 0.2: width 2; below by 1: 2 + 10; above by 0.5: 2 + 5
    found = interval_score([0.0, -2.0, 1.5], [-1] * 3, [1] * 3, 0.8, reduction="none")
    np.testing.assert_allclose(found, [2, 12, 7], rtol=1e-14)
    assert interval_score([0.0, math.nan], [-1, 0], [1, 0], 0.8) == 2


@pytest.mark.parametrize("ends", [(-1.4, 1.645), (-2.0, 2.0), (-1.645, 1.3)])
def test_true_quantiles_have_the_smallest_interval_score(ends):
    y = np.random.default_rng(0).normal(size=40000)
    best = stats.norm.ppf(0.95)
    ones = np.ones_like(y)
    true = interval_score(y, -best * ones, best * ones, 0.9, reduction="none")
    gain = interval_score(y, ends[0] * ones, ends[1] * ones, 0.9, reduction="none") - true
    assert gain.mean() > 4 * gain.std() / math.sqrt(len(y))


def test_coverage_by_hand():
    assert coverage([0.0, 1.0, 2.0, math.nan], [0] * 4, [1] * 4) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("likelihood", "num_outputs", "y"),
    [
        (Gaussian(noise=0.1), 1, torch.linspace(-1, 1, 15).double()),
        (Heteroscedastic(), 2, torch.linspace(-2, 2, 15).double()),
        (Poisson(), 1, (torch.arange(15) % 4).double()),
    ],
)
def test_coverage_curve_counts_what_intervals_hold(likelihood, num_outputs, y):
    y = y.clone()
    y[3] = math.nan
    prediction = fitted(likelihood, num_outputs, y, missing="nan")
    levels = [0.11, 0.5, 0.93]
    kept = ~y.isnan()
    expected = []
    for level in levels:
        lower, upper = (end.reshape(-1).detach() for end in prediction.interval(level))
        expected.append(float(((y >= lower) & (y <= upper))[kept].double().mean()))
    np.testing.assert_allclose(coverage_curve(prediction, y, levels), expected, rtol=1e-14)
    assert coverage_curve(prediction, y).shape == (19,)


P = np.array([[0.7, 0.3], [0.7, 0.3], [0.1, 0.9], [0.5, 0.5], [0.44, 0.56]])
Y = np.array([0, 1, 1, 0, 0])


def test_bins_of_equal_width_by_hand():
    found = reliability(P, Y, num_bins=5)
    np.testing.assert_allclose(found.edges, [0, 0.2, 0.4, 0.6, 0.8, 1])
    assert found.counts.tolist() == [0, 0, 2, 2, 1]
    np.testing.assert_allclose(found.confidence, [math.nan, math.nan, 0.53, 0.7, 0.9])
    np.testing.assert_allclose(found.accuracy, [math.nan, math.nan, 0.5, 0.5, 1])
    gaps, share = np.array([0.03, 0.2, 0.1]), np.array([2, 2, 1]) / 5
    for norm, expected in [
        (1, share @ gaps),
        (2, math.sqrt(share @ gaps**2)),
        (math.inf, 0.2),
    ]:
        found = calibration_error(P, Y, num_bins=5, norm=norm)
        assert found == pytest.approx(expected, rel=1e-12)


def test_bins_have_their_upper_end():
    found = reliability([[0.5, 0.5], [0.75, 0.25], [0.76, 0.24], [1.0, 0.0]], [0] * 4, num_bins=4)
    assert found.counts.tolist() == [0, 1, 1, 2]


def test_bins_of_equal_mass_by_hand():
    # confidences 0.5 0.56 | 0.7 0.7 0.9: the median belongs to the lower bin
    found = reliability(P, Y, num_bins=2, binning="mass")
    np.testing.assert_allclose(found.edges, [0.5, 0.7, 0.9])
    assert found.counts.tolist() == [4, 1]
    np.testing.assert_allclose(found.confidence, [2.46 / 4, 0.9])
    np.testing.assert_allclose(found.accuracy, [0.5, 1])
    error = calibration_error(P, Y, num_bins=2, binning="mass")
    assert error == pytest.approx(0.8 * (2.46 / 4 - 0.5) + 0.2 * 0.1)
    same = np.full((6, 2), 0.5)
    assert reliability(same, [0, 1] * 3, binning="mass").counts.tolist() == [6]


def test_mass_bins_hold_equal_numbers():
    p = np.random.default_rng(0).dirichlet(np.ones(3), size=120)
    assert (reliability(p, [0] * 120, num_bins=8, binning="mass").counts == 15).all()


def test_classwise_by_hand():
    expected = []
    for k in range(2):
        bins, gaps = np.ceil(P[:, k] * 5), []
        for b in np.unique(bins):
            own = bins == b
            gaps.append(own.mean() * abs((P[own, k] - (Y[own] == k)).mean()))
        expected.append(sum(gaps))
    found = calibration_error(P, Y, num_bins=5, classwise=True)
    assert found == pytest.approx(np.mean(expected), rel=1e-12)


def test_calibrated_probabilities_have_an_error_that_vanishes():
    source = np.random.default_rng(0)
    p = source.dirichlet(np.ones(3), size=20000)
    y = (source.random((20000, 1)) > p.cumsum(axis=1)).sum(axis=1)
    for binning in ("width", "mass"):
        # E|gap| of a bin is below 1/2 √(1 / n_b): √(B / n) / 2 in all
        assert calibration_error(p, y, binning=binning) < 0.5 * math.sqrt(15 / 20000)
        assert calibration_error(p, (y + 1) % 3, binning=binning) > 0.1


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_order_of_rows_and_names_of_classes_don_t_matter(binning):
    source = np.random.default_rng(1)
    p = source.dirichlet(np.ones(4), size=60).round(2)
    p[:, -1] = 1 - p[:, :-1].sum(axis=1)
    p = np.abs(p) / np.abs(p).sum(axis=1, keepdims=True)
    y = source.integers(4, size=60)
    rows, names = source.permutation(60), source.permutation(4)
    renamed = p[:, names], np.argsort(names)[y]
    for score in (brier, lambda *a: calibration_error(*a, binning=binning, classwise=True)):
        one = score(p, y)
        assert score(p[rows], y[rows]) == pytest.approx(one, rel=1e-12)
        assert score(*renamed) == pytest.approx(one, rel=1e-12)


def test_brier_by_hand_and_by_sklearn():
    each = brier(P, Y, reduction="none")
    np.testing.assert_allclose(each, [0.18, 0.98, 0.02, 0.5, 2 * 0.56**2], rtol=1e-12)
    assert brier(P[:, 1], Y) == pytest.approx(2 * brier_score_loss(Y, P[:, 1]), rel=1e-12)
    assert brier(torch.tensor(P).float(), torch.tensor(Y)) == pytest.approx(each.mean(), rel=1e-6)


def test_truth_has_the_smallest_brier_score():
    source = np.random.default_rng(0)
    p = source.dirichlet(np.ones(3), size=20000)
    y = (source.random((20000, 1)) > p.cumsum(axis=1)).sum(axis=1)
    true = brier(p, y, reduction="none")
    for other in (0.9 * p + 0.1 / 3, p**1.3 / (p**1.3).sum(axis=1, keepdims=True)):
        gain = brier(other, y, reduction="none") - true
        assert gain.mean() > 4 * gain.std() / math.sqrt(20000)


def test_auroc_is_sklearns_and_larger_means_out():
    source = np.random.default_rng(0)
    inside, outside = source.normal(size=50).round(1), source.normal(1, size=30).round(1)
    both = np.concatenate([inside, outside])
    expected = roc_auc_score(np.repeat([0, 1], [50, 30]), both)
    assert auroc(inside, outside) == pytest.approx(expected, rel=1e-12)
    assert auroc([0.0, 1.0], [2.0, math.inf]) == 1.0
    assert auroc(-inside, -outside) == pytest.approx(1 - expected, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: brier(np.ones((2, 3)), [0, 1]), "probs: expected rows of numbers >= 0 that sum"),
        (lambda: brier([[0.5, 0.5]], [2]), "labels: expected whole numbers 0 .. 1"),
        (lambda: brier([[0.5, 0.5]], [0, 1]), r"labels: expected one label per row \(1,\)"),
        (lambda: brier([[0.5, math.nan]], [0]), "probs: has 1 NaN"),
        (lambda: brier(np.ones((2, 1)), [0, 0]), "probs: expected .n, K. with one column"),
        (lambda: calibration_error(P, Y, num_bins=0), "num_bins: expected a whole number >= 1"),
        (lambda: calibration_error(P, Y, norm=0.5), "norm: expected 1, 2 or inf"),
        (lambda: reliability(P, Y, binning="equal"), 'binning: expected "width" or "mass"'),
        (lambda: auroc([], [1.0]), "scores_in: expected one score per row"),
        (lambda: auroc([1.0], [[1.0]]), "scores_out: expected one score per row"),
        (lambda: coverage([0.0], [1.0], [0.0]), r"lower: is above upper at \[0\]"),
        (lambda: coverage([0.0], [1.0, 2.0], [2.0]), r"lower: has shape \(2,\), but y has"),
        (lambda: interval_score([0.0], [0.0], [1.0], 95), "level: expected numbers between 0 and"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_what_is_no_prediction_or_no_number_is_refused(classes, labels):
    with pytest.raises(TypeError, match="prediction: expected what `predict` gives"):
        nll(np.zeros(3), [0, 1, 2])
    with pytest.raises(TypeError, match="prediction: expected what `predict` gives"):
        coverage_curve(None, [0.0])
    with pytest.raises(TypeError, match="labels: expected real numbers, got <U1"):
        brier(P, list("ababa"))
    with pytest.raises(ValueError, match="y: expected one target for each of the 30 rows"):
        nll(classes, labels[:-1])
