"""Searches that are cut short, without a `LinearizedGP` around them, change nothing."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from interruptions import calls, interrupt
from laplace_cases import CASES, make_laplace

from lingp.inference import ConvergenceWarning, optimize, tune_on_validation
from lingp.inference.mean_scale import Matched
from lingp.likelihoods import Categorical, Gaussian
from lingp.priors import Layerwise

SHARES = (0.1, 0.4, 0.7, 1.0)  # of the calls until it is done


def regression():
    net, x, y, _ = CASES[1].build()
    return make_laplace(net, x, y, Layerwise(0.7), Gaussian(0.2), "function", "refit")


def held_out(num_rows=8):
    net, _, _, x = CASES[1].build(num_test=num_rows)
    return x, net(x).detach()


def on_validation(laplace):
    x, y = held_out()
    return tune_on_validation(laplace, [(x, y + 0.5, None)], typical_factor=10.0)


WORK = {
    "l-bfgs": lambda laplace: optimize(laplace, method="l-bfgs", num_restarts=1, tolerance=1e-3),
    "mackay": lambda laplace: optimize(laplace, method="mackay", tolerance=1e-3),
    "leave-one-out": lambda laplace: optimize(
        laplace, objective="leave_one_out", tolerance=1e-2, num_restarts=0
    ),
    "validation": on_validation,
}


def values(laplace):
    modules = laplace.prior, laplace.likelihood
    return copy.deepcopy([module.state_dict() for module in modules]), laplace.mean_scale


def unchanged(laplace, before):
    states, scale = values(laplace)
    assert scale == before[1]
    for state, old in zip(states, before[0], strict=True):
        assert all(torch.equal(state[name], old[name]) for name in old)


@pytest.mark.parametrize("name", WORK)
def test_interrupted(name):
    work = WORK[name]
    done = regression()
    before = values(done)
    work(done)
    another = regression()
    total = calls(lambda: work(another))
    with pytest.raises(AssertionError):
        unchanged(done, before)
    for share in SHARES:
        laplace = regression()
        interrupt(lambda laplace=laplace: work(laplace), max(1, round(share * total)))
        unchanged(laplace, before)


@pytest.mark.parametrize("mean", ["network", "refit"])
def test_a_warning_that_is_an_error(mean):
    net, x, y, _ = CASES[1].build()
    laplace = make_laplace(net, x, y, Layerwise(100.0), Gaussian(20.0), "function", mean)
    before = values(laplace)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        with pytest.raises(ConvergenceWarning, match="did not converge"):
            optimize(laplace, max_evaluations=2)
    unchanged(laplace, before)


def test_the_scale_of_the_mean_stays():
    """It is set with the hyperparameters, before a search can still fail by its warning."""
    net, x, _, _ = CASES[1].build(num_data=20)
    likelihood = Categorical()
    labels = likelihood.check_targets(net(x).argmax(1), (3,), torch.float64)
    x_valid, outputs = held_out()
    y_valid = likelihood.check_targets(outputs.argmax(1), (3,), torch.float64)

    def make():
        laplace = make_laplace(net, x, labels, Layerwise(0.7), likelihood, "function")
        laplace.mean_scale = Matched(1.25)
        return laplace

    def work(laplace):
        tune_on_validation(laplace, [(x_valid, y_valid, None)], scale_mean=True, span=100.0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        laplace, another = make(), make()
        before = values(laplace)
        work(laplace)
        assert laplace.mean_scale != before[1]
        total = calls(lambda: work(another))
        laplace = make()
        interrupt(lambda: work(laplace), total)
    unchanged(laplace, before)
