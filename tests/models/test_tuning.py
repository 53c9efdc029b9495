"""Ways to choose hyperparameters at the front door."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trained_networks import make_inputs, make_net, same

from lingp.likelihoods import Categorical, Gaussian
from lingp.models import LinearizedGP

X, X_VALID = make_inputs(16), make_inputs(8, seed=1)
LABELS = (X.sum(1) > 0).long() + (X.prod(1) > 0).long()
LABELS_VALID = (X_VALID.sum(1) > 0).long() + (X_VALID.prod(1) > 0).long()
Y, Y_VALID = X.sin().sum(1), X_VALID.sin().sum(1)


def regression(mean="network", prior=5.0):
    return LinearizedGP(make_net(), Gaussian(1.0), prior=prior, mean=mean).fit(X, Y)


def classification():
    return LinearizedGP(make_net(3), Categorical(), prior=5.0).fit(X, LABELS)


@pytest.mark.parametrize("method", ["auto", "l-bfgs", "mackay"])
def test_methods_come_to_the_same_evidence(method):
    expected = regression().optimize_hyperparameters().value
    gp = regression()
    result = gp.optimize_hyperparameters(method=method)
    assert result.converged
    assert result.value == pytest.approx(expected, rel=1e-6)
    assert gp.log_marginal_likelihood().item() == pytest.approx(expected, rel=1e-6)


def test_leave_one_out_is_raised():
    gp = regression(mean="refit")
    before = gp.leave_one_out().log_predictive.sum().item()
    result = gp.optimize_hyperparameters(objective="leave_one_out")
    after = gp.leave_one_out().log_predictive.sum().item()
    assert result.initial_value == pytest.approx(before)
    assert result.value == pytest.approx(after)
    assert after > before


@pytest.mark.parametrize("make", [regression, classification])
def test_validation_data_are_predicted_better_and_then_absorbed(make):
    classes = make is classification
    x, y = X_VALID, LABELS_VALID if classes else Y_VALID
    gp = make()
    before = gp.predict(x).log_prob(y).sum().item()
    result = gp.optimize_hyperparameters(validation=(x, y), absorb=False)
    assert result.num_rows == 8
    # curvature that is its own average is found roughly while factors are compared
    tolerance = {"abs": 1e-3 * len(x)} if classes else {"rel": 1e-6}
    assert result.initial_value == pytest.approx(before, **tolerance)
    after = gp.predict(x).log_prob(y).sum().item()
    assert result.value == pytest.approx(after, **tolerance)
    assert after >= before
    absorbed = make()
    absorbed.optimize_hyperparameters(validation=(x, y))
    net, targets = (make_net(3), LABELS) if classes else (make_net(), Y)
    whole = LinearizedGP(net, gp.likelihood, prior=gp.prior)
    same(absorbed, whole.fit(torch.cat([X, x]), torch.cat([targets, y])), x)


def test_an_expected_change_holds_the_factors_back():
    free, held = regression(), regression()
    found = [
        gp.optimize_hyperparameters(validation=(X_VALID, Y_VALID), typical_factor=typical)
        for gp, typical in ((free, None), (held, 1.5))
    ]
    assert found[1].initial_value == found[0].initial_value < found[1].value
    moves = [sum(math.log(f) ** 2 for f in result.scales.values()) for result in found]
    assert moves[1] < moves[0]


def test_every_form_of_validation_data():
    weights = torch.linspace(0.5, 2.0, 8, dtype=torch.float64)
    data = TensorDataset(X_VALID, Y_VALID)
    forms = [
        (X_VALID, Y_VALID),
        (X_VALID.numpy(), Y_VALID.tolist()),
        data,
        DataLoader(data, batch_size=5),
        iter([(X_VALID, Y_VALID)]),
        [(X_VALID[:5], Y_VALID[:5]), (X_VALID[5:], Y_VALID[5:])],
        ((X_VALID[:5], Y_VALID[:5]), (X_VALID[5:], Y_VALID[5:])),
    ]
    expected = regression()
    expected.optimize_hyperparameters(validation=forms[0])
    for form in forms[1:]:
        gp = regression()
        gp.optimize_hyperparameters(validation=form)
        same(gp, expected, X)
    weighted = [regression(), regression()]
    weighted[0].optimize_hyperparameters(validation=(X_VALID, Y_VALID, weights))
    weighted[1].optimize_hyperparameters(validation=TensorDataset(X_VALID, Y_VALID, weights))
    same(*weighted, X)


def test_options_that_exclude_each_other():
    gp = regression()
    for option in ({"objective": "evidence"}, {"method": "mackay"}, {"num_restarts": 3}):
        with pytest.raises(ValueError, match=f"{next(iter(option))}: has no meaning with valid"):
            gp.optimize_hyperparameters(validation=(X_VALID, Y_VALID), **option)
    with pytest.raises(ValueError, match="typical_factor: has no meaning without validation"):
        gp.optimize_hyperparameters(typical_factor=10.0)
    with pytest.raises(ValueError, match=r"objective.*'likelihood'"):
        gp.optimize_hyperparameters(objective="likelihood")
    with pytest.raises(ValueError, match=r"method.*'adam'"):
        gp.optimize_hyperparameters(method="adam")
    with pytest.raises(ValueError, match="y: has shape"):
        gp.optimize_hyperparameters(validation=(X_VALID, X_VALID))
    with pytest.raises(ValueError, match="no batches"):
        gp.optimize_hyperparameters(validation=[])


def test_the_mode_reports_how_it_was_found():
    gp = LinearizedGP(make_net(3), Categorical(), mean="refit").fit(X, LABELS)
    mode = gp.mode()
    assert mode.converged
    assert mode.num_iterations > 1
    assert "converged" in str(mode)
    torch.testing.assert_close(mode.outputs, gp.posterior(X).mean)
    # the network's own GP can be asked too
    other = LinearizedGP(make_net(3), Categorical()).fit(X, LABELS).mode()
    torch.testing.assert_close(other.outputs, mode.outputs)


def test_sites_are_where_they_are_asked_for():
    expected = LinearizedGP(make_net(3), Categorical(), sites="mean").fit(X, LABELS)
    gps = {
        sites: LinearizedGP(make_net(3), Categorical(), mean="refit", sites=sites).fit(X, LABELS)
        for sites in ("mean", "network")
    }
    variance = {sites: gp.posterior(X).variance for sites, gp in gps.items()}
    torch.testing.assert_close(variance["network"], expected.posterior(X).variance)
    assert not torch.allclose(variance["mean"], variance["network"], rtol=1e-3)
    torch.testing.assert_close(gps["mean"].posterior(X).mean, gps["network"].posterior(X).mean)
    assert gps["mean"].sites == "mean"
    with pytest.raises(ValueError, match=r'sites: expected "auto", .* or "expected", got \'mode\''):
        LinearizedGP(make_net(), sites="mode")


def test_class_labels_have_expected_curvature_around_the_networks_own_mean():
    automatic = {
        "expected": LinearizedGP(make_net(3), Categorical()),
        "mean": LinearizedGP(make_net(3), Categorical(), mean="refit"),
    }
    for sites, gp in automatic.items():
        assert gp.sites == sites
        asked = LinearizedGP(make_net(3), Categorical(), mean=gp.mean, sites=sites)
        same(gp.fit(X, LABELS), asked.fit(X, LABELS), X)
    assert regression().sites == "mean"
