"""A weight is a number of repetitions; class weights multiply it; nothing else gets through."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_sample_weight
from torch.utils.data import DataLoader, TensorDataset
from trained_networks import make_inputs, make_net, same

from lingp.likelihoods import Bernoulli, Categorical, Gaussian, Ordinal, Poisson, Tempered
from lingp.models import LinearizedGP

N = 12
X = make_inputs(N)
LABELS = torch.tensor([0, 1, 2, 0, 0, 1, 0, 0, 2, 0, 1, 0])
WEIGHTS = torch.tensor([2, 1, 0, 3, 1, 1, 0, 1, 2, 1, 1, 1])

MODELS = {
    "gaussian": (Gaussian(0.1), 1, X.sum(1)),
    "categorical": (Categorical(), 3, LABELS),
    "poisson": (Poisson(), 1, LABELS),
}
SPACES = ["weight_space", "function_space"]


def model(name, space="auto", mean="network"):
    likelihood, outputs, y = MODELS[name]
    return LinearizedGP(make_net(outputs), likelihood, inference=space, mean=mean), y


@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", MODELS)
def test_a_weight_is_a_number_of_repetitions(name, space, mean):
    gp, y = model(name, space, mean)
    repeated, _ = model(name, space, mean)
    gp.fit(X, y, sample_weight=WEIGHTS)
    repeated.fit(X.repeat_interleave(WEIGHTS, 0), y.repeat_interleave(WEIGHTS, 0))
    same(gp, repeated, X)


@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_weights_come_with_batches_too(name):
    expected, y = model(name)
    expected.fit(X, y, sample_weight=WEIGHTS.numpy())
    forms = [
        list(zip(X.split(5), y.split(5), WEIGHTS.split(5), strict=True)),
        DataLoader(TensorDataset(X, y, WEIGHTS), batch_size=5),
        TensorDataset(X, y, WEIGHTS.double()),
    ]
    for form in forms:
        same(model(name)[0].fit(form), expected, X)
    same(model(name)[0].fit((X, y), sample_weight=WEIGHTS.tolist()), expected, X)


def test_ones_change_nothing_and_batches_without_weights_count_once():
    plain, y = model("gaussian")
    plain.fit(X, y)
    same(model("gaussian")[0].fit(X, y, sample_weight=np.ones(N)), plain, X)
    same(model("gaussian")[0].fit([(X[:5], y[:5], torch.ones(5)), (X[5:], y[5:])]), plain, X)


@pytest.mark.parametrize(
    "class_weight", ["balanced", {0: 0.5, 2: 3.0}, [0.5, 1.0, 3.0], torch.tensor([0.5, 1.0, 3.0])]
)
@pytest.mark.parametrize("likelihood", [Categorical(), Ordinal(3), Tempered(Categorical(), 2.0)])
def test_class_weights_are_those_of_scikit_learn(class_weight, likelihood):
    net = make_net(1 if isinstance(likelihood, Ordinal) else 3)
    if isinstance(class_weight, (list, torch.Tensor)):
        table = dict(enumerate(np.asarray(class_weight).tolist()))
    else:
        table = class_weight
    weights = compute_sample_weight(table, LABELS.numpy())
    expected = LinearizedGP(net, likelihood).fit(X, LABELS, sample_weight=weights)
    gp = LinearizedGP(net, likelihood).fit(X, LABELS, class_weight=class_weight)
    same(gp, expected, X)
    batches = zip(X.split(5), LABELS.split(5), strict=True)
    same(LinearizedGP(net, likelihood).fit(batches, class_weight=class_weight), expected, X)


def test_class_weights_multiply_sample_weights():
    net = make_net(3)
    both = LinearizedGP(net, "categorical").fit(
        X, LABELS, sample_weight=WEIGHTS, class_weight=[1.0, 2.0, 0.5]
    )
    table = torch.tensor([1.0, 2.0, 0.5])[LABELS]
    expected = LinearizedGP(net, "categorical").fit(X, LABELS, sample_weight=WEIGHTS * table)
    same(both, expected, X)


def test_balanced_counts_rows_as_often_as_their_weights_say():
    # one repetition is not one of weight w·f in w, so without what leaves it out
    plain = {"sites": "mean", "mean_scale": 1.0}
    gp, repeated = (LinearizedGP(make_net(3), "categorical", **plain) for _ in range(2))
    gp.fit(X, LABELS, sample_weight=WEIGHTS, class_weight="balanced")
    repeated.fit(
        X.repeat_interleave(WEIGHTS, 0), LABELS.repeat_interleave(WEIGHTS), class_weight="balanced"
    )
    same(gp, repeated, X)


def test_balanced_with_a_class_that_never_occurs():
    y = LABELS.clamp(max=1)
    gp = LinearizedGP(make_net(3), "categorical").fit(X, y, class_weight="balanced")
    weights = compute_sample_weight("balanced", y.numpy())
    expected = LinearizedGP(make_net(3), "categorical").fit(X, y, sample_weight=weights)
    same(gp, expected, X)


def test_labels_that_were_not_observed_are_not_counted():
    y = LABELS.double()
    y[:3] = torch.nan
    gp = LinearizedGP(make_net(3), "categorical")
    gp.fit(X, y, class_weight="balanced", missing="nan")
    rest = LinearizedGP(make_net(3), "categorical")
    same(gp, rest.fit(X[3:], LABELS[3:], class_weight="balanced"), X)


def bad(index, value):
    weights = torch.ones(N)
    weights[index] = value
    return weights


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (bad(3, -1.0), "sample_weight: expected weights >= 0, got -1 in row 3"),
        (bad(3, torch.nan), "sample_weight: has 1 NaN"),
        (bad(3, torch.inf), "sample_weight: has 1 NaN or inf"),
        (torch.ones(N, 1), r"sample_weight: expected one weight per row, \(12,\), got.*\(12, 1\)"),
        (torch.ones(5), r"sample_weight: expected one weight per row.*\(5,\)"),
        (torch.zeros(N), "sample_weight: all weights are zero"),
        (2.0, "sample_weight: expected one weight per row"),
    ],
)
def test_wrong_sample_weights_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        LinearizedGP(make_net()).fit(X, X.sum(1), sample_weight=weights)


def test_weights_of_a_loader_come_from_the_loader():
    batches = [(X, X.sum(1))]
    with pytest.raises(TypeError, match=r"sample_weight: goes with arrays.*targets, weights"):
        LinearizedGP(make_net()).fit(batches, sample_weight=torch.ones(N))
    with pytest.raises(ValueError, match="all weights are zero"):
        LinearizedGP(make_net()).fit([(X, X.sum(1), torch.zeros(N))])
    with pytest.raises(ValueError, match="weights in batch 0: expected weights >= 0"):
        LinearizedGP(make_net()).fit([(X, X.sum(1), bad(0, -1))])


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("even", "class_weight: expected \"balanced\".*'even'"),
        ({3: 1.0}, r"class_weight: 3 is not one of the labels 0 \.\. 2"),
        ([1.0, 2.0], "class_weight: expected one weight for each of 3 classes, got 2"),
        ([1.0, 2.0, -1.0], "class_weight: expected finite weights >= 0"),
        ([0.0, 0.0, 0.0], "class_weight: leaves no row"),
    ],
)
def test_wrong_class_weights_are_named(class_weight, message):
    with pytest.raises(ValueError, match=message):
        LinearizedGP(make_net(3), "categorical").fit(X, LABELS, class_weight=class_weight)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y"),
    [
        (Gaussian(), 1, X.sum(1)),
        (Poisson(), 1, LABELS),
        (Bernoulli(), 2, LABELS.clamp(max=1).unsqueeze(1).expand(N, 2)),
        (Categorical(), (4, 3), LABELS.unsqueeze(1).expand(N, 4)),
    ],
)
def test_class_weights_need_one_label_per_row(likelihood, outputs, y):
    with pytest.raises(ValueError, match="class_weight: needs one class label per row"):
        LinearizedGP(make_net(outputs), likelihood).fit(X, y, class_weight="balanced")
