"""What is interrupted leaves a GP as it was, and it can go on."""

from __future__ import annotations

import copy

import pytest
import torch
from interruptions import calls, interrupt
from trained_networks import make_inputs, make_net, same

from lingp.inference import Sparse
from lingp.likelihoods import Categorical, Gaussian, StudentT
from lingp.models import LinearizedGP
from lingp.priors import Layerwise

X, X_NEW = make_inputs(12), make_inputs(5, seed=1)
VALUES, NEW_VALUES = X.sin().sum(1), X_NEW.sin().sum(1)
LABELS, NEW_LABELS = (X.sum(1) > 0).long(), (X_NEW.sum(1) > 0).long()
HELD_OUT = {"validation": (X_NEW, NEW_VALUES)}
WORK = {
    "fit": lambda gp: gp.fit(X_NEW, NEW_VALUES, sample_weight=NEW_VALUES.abs(), progress=False),
    "add_data": lambda gp: gp.add_data(X_NEW, NEW_VALUES),
    "remove_data": lambda gp: gp.remove_data([1, 3]),
    "evidence": lambda gp: gp.optimize_hyperparameters(),
    "l-bfgs": lambda gp: gp.optimize_hyperparameters(method="l-bfgs"),
    "mackay": lambda gp: gp.optimize_hyperparameters(method="mackay"),
    "leave-one-out": lambda gp: gp.optimize_hyperparameters(
        objective="leave_one_out", tolerance=1e-2, num_restarts=1
    ),
    "validation": lambda gp: gp.optimize_hyperparameters(absorb=False, **HELD_OUT),
    "validation, absorbed": lambda gp: gp.optimize_hyperparameters(**HELD_OUT),
}
SHARES = (0.03, 0.3, 0.6, 0.9, 1.0)  # of the calls until it is done


def regression(**options):
    options = {"mean": "refit", "prior": Layerwise(0.7), **options}
    gp = LinearizedGP(make_net(), Gaussian(0.3), **options).fit(X, VALUES, progress=False)
    gp.predict(X)
    return gp


def check_unchanged(make, work):
    work(make())  # from the second time on, as many functions are called
    done, expected = make(), make()
    total = calls(lambda: work(done))
    for share in SHARES:
        gp = make()
        interrupt(lambda gp=gp: work(gp), max(1, round(share * total)))
        same(gp, expected, X)
        assert gp.evidence() == expected.evidence()


@pytest.mark.parametrize("name", WORK)
def test_everything_is_as_before(name):
    check_unchanged(regression, WORK[name])


@pytest.mark.parametrize("name", ["fit", "add_data", "remove_data"])
def test_a_sparse_posterior_is_as_before(name):
    check_unchanged(lambda: regression(inference=Sparse(num_inducing=4)), WORK[name])


@pytest.mark.filterwarnings("ignore::lingp.inference.BoundaryWarning")
def test_labels_whose_curvature_is_its_own_average():
    def make():
        gp = LinearizedGP(make_net(2), Categorical(), prior=0.7).fit(X, LABELS, progress=False)
        gp.predict(X)
        return gp

    check_unchanged(make, lambda gp: gp.optimize_hyperparameters(validation=(X_NEW, NEW_LABELS)))


def test_it_can_be_done_again():
    gp, expected = regression(), regression()
    interrupt(lambda: WORK["validation, absorbed"](gp), 200)
    for model in (gp, expected):
        WORK["validation, absorbed"](model)
    same(gp, expected, X)


def test_a_first_fit_leaves_nothing():
    def make():
        return LinearizedGP(make_net(), Gaussian(0.3), prior=0.7)

    done = make()
    total = calls(lambda: done.fit(X, VALUES, progress=False))
    for share in SHARES:
        gp = make()
        interrupt(lambda gp=gp: gp.fit(X, VALUES, progress=False), round(share * total))
        with pytest.raises(RuntimeError, match="no data yet"):
            gp.predict(X)


def test_another_likelihood_is_taken_when_there_is_time():
    likelihood = StudentT()
    expected = regression()
    expected.likelihood = copy.deepcopy(likelihood)
    expected.predict(X)
    gp = regression()
    gp.likelihood = likelihood
    for number in range(5, 200, 15):
        interrupt(lambda: gp.predict(X), number)
    same(gp, expected, X)


def test_errors_too():
    gp, before = regression(), regression()
    with pytest.raises(ValueError, match="NaN"):
        gp.fit([(X, VALUES), (X, torch.full_like(VALUES, torch.nan))], progress=False)
    with pytest.raises(ValueError, match="NaN"):
        gp.add_data([(X, VALUES), (X, torch.full_like(VALUES, torch.nan))])
    same(gp, before, X)
