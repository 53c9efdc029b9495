"""Rows added later count as if they had been there at fit."""

from __future__ import annotations

import pytest
import torch
from trained_networks import make_inputs, make_net, same

from lingp.likelihoods import Categorical, Gaussian, Poisson
from lingp.models import LinearizedGP

X = make_inputs(15)
LABELS = torch.arange(15) % 3 * (torch.arange(15) % 2)
MODELS = {
    "gaussian": (Gaussian(0.1), 1, X.sum(1)),
    "categorical": (Categorical(), 3, LABELS),
    "poisson": (Poisson(), 1, LABELS),
}


@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize("space", ["weight_space", "function_space"])
@pytest.mark.parametrize(("name", "budget"), [*((n, None) for n in MODELS), ("poisson", 200_000)])
def test_equals_a_fit_of_all_rows(name, space, mean, budget):
    likelihood, outputs, y = MODELS[name]

    def make():
        return LinearizedGP(
            make_net(outputs), likelihood, inference=space, mean=mean, memory_budget=budget
        )

    gp = make().fit(X[:6], y[:6])
    gp.log_marginal_likelihood()  # what is kept must not go stale
    gp.predict(X)
    assert gp.add_data(X[6:10], y[6:10]) is gp
    gp.add_data([(X[10:], y[10:])])
    same(gp, make().fit(X, y), X)


def test_weights_labels_and_missing_targets_of_all_rows():
    y = LABELS.double()
    y[7] = torch.nan
    weights = torch.linspace(0.5, 2, 15)
    options = {"class_weight": "balanced", "missing": "nan"}
    gp = LinearizedGP(make_net(3), "categorical")
    gp.fit(X[:6], y[:6], sample_weight=weights[:6], **options)
    gp.add_data(X[6:], y[6:], sample_weight=weights[6:])
    whole = LinearizedGP(make_net(3), "categorical").fit(X, y, sample_weight=weights, **options)
    same(gp, whole, X)


def test_rows_with_and_without_weights():
    y = X.sum(1)
    gp = LinearizedGP(make_net()).fit(X[:6], y[:6])
    gp.add_data(X[6:], y[6:], sample_weight=torch.full((9,), 2.0))
    weights = torch.cat([torch.ones(6), torch.full((9,), 2.0)])
    same(gp, LinearizedGP(make_net()).fit(X, y, sample_weight=weights), X)


def test_the_choice_of_inference_is_made_again():
    many = make_inputs(400, seed=1)
    gp = LinearizedGP(make_net()).fit(X[:3], X[:3].sum(1))
    assert gp.inference_choice.space == "function_space"
    gp.add_data(many, many.sum(1))
    assert gp.inference_choice.space == "weight_space"
    assert "403" in str(gp.inference_choice)


def test_what_is_refused_leaves_the_data_as_they_were():
    y = X.sum(1)
    gp = LinearizedGP(make_net(3), "categorical").fit(X[:9], LABELS[:9], class_weight="balanced")
    expected = LinearizedGP(make_net(3), "categorical")
    expected.fit(X[:9], LABELS[:9], class_weight="balanced")
    for arguments in ((X, y), (X, LABELS[:3]), ([(X[:9], LABELS[:9]), (X, LABELS[:3])],)):
        with pytest.raises(ValueError, match="y"):
            gp.add_data(*arguments)
        same(gp, expected, X)
    gp.add_data(X[9:], LABELS[9:])
    same(gp, LinearizedGP(make_net(3), "categorical").fit(X, LABELS, class_weight="balanced"), X)


def test_needs_a_fit():
    with pytest.raises(RuntimeError, match=r"call fit\(X, y\) first"):
        LinearizedGP(make_net()).add_data(X, X.sum(1))


def test_a_fit_starts_anew():
    y = X.sum(1)
    gp = LinearizedGP(make_net()).fit(X[:6], y[:6], sample_weight=torch.full((6,), 3.0))
    same(gp.fit(X, y), LinearizedGP(make_net()).fit(X, y), X)
