"""Rows that come and go: as if they had been there, or not, at `fit`."""

from __future__ import annotations

import pytest
import torch

from lingp import LinearizedGP, Sparse
from lingp.likelihoods import Gaussian
from lingp.linearization import LinearizedNetwork
from lingp.priors import Layerwise

LIKELIHOODS = ["gaussian", "categorical"]
INFERENCE = ["weight_space", "function_space", "sparse"]


def data(likelihood):
    generator = torch.Generator().manual_seed(1)
    torch_net = torch.nn.Sequential(
        torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)
    ).double()
    with torch.no_grad():
        for p in torch_net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    x = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    if likelihood == "categorical":
        y = torch.randint(3, (20,), generator=generator)
    else:
        y = torch_net(x).detach() + 0.3 * torch.randn(20, 3, generator=generator).double()
    return torch_net, x, y


def model(net, x, likelihood, inference, **options):
    if inference == "sparse":
        inference = Sparse(inducing=x[::4])
    noise = Gaussian(0.2) if likelihood == "gaussian" else likelihood
    return LinearizedGP(net, noise, prior=0.7, inference=inference, **options)


def agree(a, b, x_test):
    for first, second in ((a.posterior(x_test), b.posterior(x_test)),):
        scale = float(second.covariance_matrix.abs().max())
        # terms of the same size are added and subtracted: rounding only
        torch.testing.assert_close(
            first.covariance_matrix, second.covariance_matrix, rtol=0, atol=1e-10 * scale
        )
        torch.testing.assert_close(first.mean, second.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        a.log_marginal_likelihood(), b.log_marginal_likelihood(), rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("sites", ["mean", "auto"])
@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize("inference", INFERENCE)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_adding_and_removing_rows_equals_fitting_the_rest(likelihood, inference, mean, sites):
    net, x, y = data(likelihood)
    weights = torch.linspace(0.5, 2.0, 20).double()
    options = {"mean": mean, "sites": sites}
    gp = model(net, x, likelihood, inference, **options)
    gp.fit(x[:14], y[:14], sample_weight=weights[:14], progress=False)
    gp.posterior(x[:2])
    gp.add_data(x[14:], y[14:], sample_weight=weights[14:])
    whole = model(net, x, likelihood, inference, **options)
    whole.fit(x, y, sample_weight=weights, progress=False)
    agree(gp, whole, x[:5] + 0.1)

    gp.remove_data([3, 17, 0])
    left = torch.tensor([n for n in range(20) if n not in (0, 3, 17)])
    rest = model(net, x, likelihood, inference, **options)
    rest.fit(x[left], y[left], sample_weight=weights[left], progress=False)
    agree(gp, rest, x[:5] + 0.1)
    gp.add_data(x[[17]], y[[17]], sample_weight=weights[[17]])
    gp.remove_data(torch.arange(18) == 17)
    agree(gp, rest, x[:5] + 0.1)


def test_only_the_rows_that_change_are_linearised(monkeypatch):
    net, x, y = data("gaussian")
    gp = model(net, x, "gaussian", "sparse", memory_budget=1 << 26).fit(x, y, progress=False)
    gp.laplace.training.release_factors()
    gp.posterior(x[:2])
    rows = []
    factors = LinearizedNetwork.factors

    def counting(self, inputs):
        rows.append(len(inputs))
        return factors(self, inputs)

    monkeypatch.setattr(LinearizedNetwork, "factors", counting)
    gp.remove_data([2, 5])
    gp.laplace.posterior()
    assert sum(rows) == 2


def test_a_subtraction_that_rounding_would_spoil_is_not_made():
    # the removed rows' terms are 1e14 times the others': their difference has no digits
    net, x, y = data("gaussian")
    weights = torch.ones(20).double()
    weights[:2] = 1e14
    gp = model(net, x, "gaussian", "sparse", mean="network")
    gp.fit(x, y, sample_weight=weights, progress=False)
    with pytest.warns(UserWarning, match="largest eigenvalue"):
        gp.posterior(x[:2])
    gp.remove_data([0, 1])
    rest = model(net, x, "gaussian", "sparse", mean="network").fit(x[2:], y[2:], progress=False)
    agree(gp, rest, x[:5] + 0.1)


def test_changed_hyperparameters_are_seen_after_the_data_changed():
    net, x, y = data("gaussian")
    gp = model(net, x, "gaussian", "sparse").fit(x[:14], y[:14], progress=False)
    gp.posterior(x[:2])
    gp.add_data(x[14:], y[14:])
    gp.prior = Layerwise(2.0)
    gp.likelihood.noise = 0.05
    whole = LinearizedGP(
        net, Gaussian(0.05), prior=Layerwise(2.0), inference=Sparse(inducing=x[::4])
    )
    agree(gp, whole.fit(x, y, progress=False), x[:5] + 0.1)


def test_class_weights_are_balanced_anew():
    net, x, y = data("categorical")
    gp = model(net, x, "categorical", "weight_space")
    gp.fit(x, y, class_weight="balanced", progress=False)
    gp.remove_data(range(6))
    rest = model(net, x, "categorical", "weight_space")
    rest.fit(x[6:], y[6:], class_weight="balanced", progress=False)
    agree(gp, rest, x[:5] + 0.1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([20], "from 0 to 19, got 20"),
        ([-1], "from 0 to 19, got -1"),
        ([1, 1], "names a row twice"),
        ([0.5], "expected row numbers below 20"),
        ([True, False], "20 truth values"),
        (range(20), "nothing would be left"),
    ],
)
def test_rows_that_make_no_sense_are_refused(rows, message):
    net, x, y = data("gaussian")
    gp = model(net, x, "gaussian", "sparse").fit(x, y, progress=False)
    with pytest.raises(ValueError, match=message):
        gp.remove_data(rows)
    assert gp.laplace.training.num_data == 20
