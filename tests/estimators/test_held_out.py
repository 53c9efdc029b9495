"""Rows that the network is not trained on choose how sure predictions are."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from sklearn.base import clone
from small_tables import classifier, labelled, network, regressor, table

from lingp.priors import Isotropic


def separable(num_classes):
    """Labels that a linear model gets right."""
    X, _ = table(40)
    order = X[:, 0].argsort().argsort() * num_classes // 40
    return X + order[:, None] * [4e3, 0, 0], np.array(["pear", "apple", "fig"])[order]


@pytest.mark.parametrize("num_classes", [2, 3])
def test_labels_learned_without_error_have_a_factor_from_others(num_classes, monkeypatch):
    """By default others scale prior and mean of the network of all rows, which stays as it is."""
    X, y = separable(num_classes)
    plain = classifier(steps=200).fit(X, y)  # too few rows
    assert (plain.predict(X) == y).all()
    assert plain.validation_ is None
    monkeypatch.setattr("lingp.estimators.classifier._MANY", 40)
    model = classifier(steps=200).fit(X, y)
    found = model.validation_
    assert found.num_rows == 4
    assert model.gp_.laplace.training.num_data == 40
    # rounding goes with the memory that is free, and 200 steps of training make more of it
    for left, right in zip(plain.module_.parameters(), model.module_.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-9)
    factor = found.scales["prior variances"]
    scale = model.gp_.laplace.mean_scale
    assert scale.factor != 1
    assert plain.gp_.mean_scale == 1
    torch.testing.assert_close(
        model.gp_.prior.precision, plain.gp_.prior.precision / factor, rtol=1e-6, atol=0
    )
    plain.gp_.prior.precision, plain.gp_.mean_scale = model.gp_.prior.precision, scale
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X), rtol=1e-5)


def test_no_rows_are_held_out_where_the_evidence_can_tell(monkeypatch):
    monkeypatch.setattr("lingp.estimators.classifier._MANY", 40)
    X, y = separable(3)
    noisy = y.copy()
    noisy[::7] = "fig"
    assert classifier(steps=200).fit(X, noisy).validation_ is None
    assert regressor().fit(*table(40)).validation_ is None
    fixed = Isotropic(1.0)
    fixed.raw_precision.requires_grad_(False)
    for options in ({"validation_fraction": None}, {"module": network(3)}, {"prior": fixed}):
        model = classifier(steps=200, **options).fit(X, y)
        assert (model.predict(X) == y).all()  # else there would be none anyway
        assert model.validation_ is None
    streaming = classifier(steps=200).partial_fit(X, y)
    assert (streaming.predict(X) == y).all()
    assert streaming.validation_ is None


@pytest.mark.parametrize("make", [regressor, classifier])
def test_all_rows_are_learned_from_in_the_end(make):
    X, y = table(40) if make is regressor else labelled(40)
    model = make(validation_fraction=0.25).fit(X, y)
    assert model.validation_.num_rows == 10
    assert model.validation_.value >= model.validation_.initial_value
    assert model.gp_.laplace.training.num_data == 40
    again = clone(model).fit(X, y)
    assert again.validation_.num_rows == 10
    # pieces of rows, and so rounding, go with the memory that is free; near its maximum the density
    # is flat, so that the factors agree less closely than it does
    assert math.isclose(again.validation_.value, model.validation_.value, rel_tol=1e-6)


def test_precision_and_noise_are_those_that_predict_the_held_out_rows():
    """At the factors found the density of the rows is what was said, and no neighbour's is more."""
    X, y = table(150)
    y = y + 20 * np.random.default_rng(1).normal(size=len(y))
    model = regressor(validation_fraction=0.5)
    seen = {}
    tune = type(model)._tune

    def watched(self, held, **options):
        seen.update(gp=copy.deepcopy(self.gp_), held=held)
        tune(self, held, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "_tune", watched)
        model.fit(X, y)
    gp, held, found = seen["gp"], seen["held"], model.validation_
    precision, noise = gp.prior.precision.detach().clone(), gp.likelihood.noise.detach().clone()

    def density(variances, noises):
        with torch.no_grad():
            gp.prior.precision, gp.likelihood.noise = precision / variances, noise * noises
        return float(gp.predict(held.x).log_prob(held.y).sum())

    assert not found.at_boundary
    best = found.scales["prior variances"], found.scales["noise"]
    assert math.isclose(density(1.0, 1.0), found.initial_value, rel_tol=1e-9)
    assert math.isclose(density(*best), found.value, rel_tol=1e-6)
    for i in range(2):
        for factor in (0.9, 1.1):
            moved = [b * (factor if i == j else 1.0) for j, b in enumerate(best)]
            assert density(*moved) <= found.value + 1e-6 * abs(found.value)


@pytest.mark.parametrize(("counts", "balanced"), [((12, 12, 6), True), ((29, 20, 1), False)])
def test_classes_are_held_out_alike_where_there_are_enough(counts, balanced):
    targets = np.repeat([0, 1, 2], counts)
    strata = classifier()._strata(targets, 0.3)
    assert (strata is targets) == balanced
    X = np.random.default_rng(0).normal(size=(len(targets), 3))
    model = classifier(validation_fraction=0.3).fit(X, targets)
    assert model.predict_proba(X).shape == (len(targets), 3)


def test_a_trained_module_with_held_out_rows():
    X, y = table()
    X = (X - X.mean(0)) / X.std(0)
    net = network()
    model = regressor(module=net, prefit=True, validation_fraction=0.5).fit(X, y)
    assert model.validation_.num_rows == 15
    for left, right in zip(net.parameters(), model.module_.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("fraction", [0, 1, 1.5, -0.1, "a third", float("nan"), True])
def test_other_fractions_are_refused(fraction):
    with pytest.raises(ValueError, match="validation_fraction: expected a number between 0 and 1"):
        regressor(validation_fraction=fraction).fit(*table())
    with pytest.raises(ValueError, match=r"number between 0 and 1.*held out, 'auto', or None, got"):
        classifier(validation_fraction=fraction).fit(*labelled())


def test_numbers_have_no_share_of_their_own():
    with pytest.raises(ValueError, match="held out, or None, got 'auto'"):
        regressor(validation_fraction="auto").fit(*table())
