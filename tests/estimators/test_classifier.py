"""The classifier's probabilities are those of `LinearizedGP` on data standardised by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_tables import classifier, labelled, network, table

from lingp.likelihoods import Bernoulli, Categorical
from lingp.models import LinearizedGP


@pytest.mark.parametrize("num_classes", [2, 3])
def test_probabilities_are_those_of_hand_standardised_data(num_classes):
    X, y = labelled(num_classes=num_classes)
    model = classifier().fit(X, y)
    names = sorted(set(y))
    assert list(model.classes_) == names
    x = torch.from_numpy((X - X.mean(0)) / X.std(0))
    labels = torch.tensor([names.index(name) for name in y])
    gp = LinearizedGP(model.module_, model.gp_.likelihood, prior=model.gp_.prior)
    expected = gp.fit(x, labels, progress=False).predict(x)
    found = model.predict_proba(X)
    np.testing.assert_allclose(found, expected.probs.numpy(), rtol=1e-7)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)
    np.testing.assert_array_equal(model.predict(X), np.array(names)[found.argmax(1)])
    value = gp.evidence().value
    assert model.log_marginal_likelihood_value_ == pytest.approx(value, rel=1e-8)
    mean, variance = model.latent_mean_and_variance(X)
    latent = expected.latent_mean.numpy(), expected.latent_covariance.diagonal(dim1=1, dim2=2)
    assert mean.shape == variance.shape == ((40,) if num_classes == 2 else (40, 3))
    np.testing.assert_allclose(mean.reshape(40, -1), latent[0], rtol=1e-7)
    np.testing.assert_allclose(variance.reshape(40, -1), latent[1], rtol=1e-7)


@pytest.mark.parametrize("labels", [[7, -3], [2.0, 40.0, 3.0], [True, False], ["b", "a"]])
def test_labels_of_any_kind(labels):
    X, y = labelled(num_classes=len(labels))
    positions = np.unique(y, return_inverse=True)[1]
    given = np.array(labels)[positions]
    model = classifier().fit(X, given)
    found = model.predict(X)
    assert found.dtype == given.dtype
    assert (found == given).mean() > 0.7
    np.testing.assert_array_equal(model.classes_, np.unique(given))


def test_labels_as_objects_in_a_list():
    X, y = labelled(num_classes=2)
    model = classifier().fit(X.tolist(), list(map(str, y)))
    np.testing.assert_array_equal(model.predict_proba(X), classifier().fit(X, y).predict_proba(X))


def test_the_sign_of_the_latent_mean_is_that_of_the_second_class():
    X, y = labelled(num_classes=2)
    for net in (None, network(1), network(2)):
        model = classifier(module=net).fit(X, y)
        kind = Categorical if net is not None and net[-1].out_features == 2 else Bernoulli
        assert isinstance(model.gp_.likelihood, kind)
        mean, variance = model.latent_mean_and_variance(X)
        assert mean.shape == variance.shape == (40,)
        second = model.predict_proba(X)[:, 1]
        np.testing.assert_array_equal(mean > 0, second > 0.5)
        # more variance, less sure: the probability lies between 1/2 and that of the mean
        assert (np.abs(second - 0.5) <= np.abs(1 / (1 + np.exp(-mean)) - 0.5) + 1e-12).all()


def test_two_logits_and_their_difference():
    X, y = labelled(num_classes=2)
    model = classifier(module=network(2)).fit(X, y)
    prediction = model.gp_.predict(model._tensor(X))
    f = prediction.latent_mean
    cov = prediction.latent_covariance
    mean, variance = model.latent_mean_and_variance(X)
    np.testing.assert_allclose(mean, f[:, 1] - f[:, 0], rtol=1e-12, atol=1e-14)
    spread = cov[:, 0, 0] + cov[:, 1, 1] - cov[:, 0, 1] - cov[:, 1, 0]
    np.testing.assert_allclose(variance, spread, rtol=1e-9)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_partial_fit_is_add_data(num_classes):
    X, y = labelled(num_classes=num_classes)
    names = sorted(set(y))
    streamed = classifier().partial_fit(X[:30], y[:30], classes=names)
    direct = classifier(mean="refit").fit(X[:30], y[:30])
    np.testing.assert_array_equal(streamed.predict_proba(X), direct.predict_proba(X))
    streamed.partial_fit(X[30:], y[30:])
    labels = torch.tensor([names.index(name) for name in y[30:]])
    direct.gp_.add_data(direct._tensor(X[30:]), labels)
    np.testing.assert_array_equal(streamed.predict_proba(X), direct.predict_proba(X))
    value = direct.gp_.evidence().value
    assert streamed.log_marginal_likelihood_value_ == pytest.approx(value, rel=1e-12)


def test_partial_fit_may_meet_a_class_later_that_it_was_told_of():
    X, y = labelled()
    first = y != "fig"
    model = classifier().partial_fit(X[first], y[first], classes=["fig", "pear", "apple"])
    fig = list(model.classes_).index("fig")
    before = model.predict_proba(X[~first])[:, fig]
    model.partial_fit(X[~first], y[~first])
    assert (model.predict_proba(X[~first])[:, fig] > before).all()


def test_partial_fit_after_fit_warns_that_the_mean_stays():
    X, y = labelled()
    model = classifier().fit(X, y)
    with pytest.warns(UserWarning, match='set mean="refit", or call partial_fit from the first'):
        model.partial_fit(X, y)


def test_errors_say_what_to_do():
    X, y = labelled()
    with pytest.raises(ValueError, match="all labels are of one class, 'fig'; a classifier needs"):
        classifier().fit(X, np.full(len(y), "fig"))
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        classifier().fit(X, table(40)[1])
    with pytest.raises(ValueError, match="module: gives 2 outputs, but y has 3 classes"):
        classifier(module=network(2)).fit(X, y)
    with pytest.raises(ValueError, match=r"got an array of shape \(40, 2\)"):
        classifier().fit(X, np.column_stack([y, y]))
    model = classifier().partial_fit(X, y)
    with pytest.raises(ValueError, match=r"the labels \['kiwi'\] are not among the classes"):
        model.partial_fit(X[:1], ["kiwi"])
    with pytest.raises(ValueError, match=r"partial_fit\(X, y, classes=...\)"):
        classifier().partial_fit(X, y, classes=["fig", "pear"])
