"""NaN targets: refused unless asked for, and then as if they had never been there."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trained_networks import LIKELIHOODS, make_inputs, make_net, same, shared, targets_of

from lingp.likelihoods import CorrelatedGaussian, Gaussian
from lingp.models import LinearizedGP

X = make_inputs(12)
NAN = float("nan")


@pytest.mark.parametrize("case", [c for c in LIKELIHOODS if c.missing], ids=str)
def test_rows_without_targets_add_nothing(case):
    y = targets_of(case).double()
    whole = LinearizedGP(make_net(case.output_shape), case.make()).fit(X[4:], y[4:])
    y[:4] = NAN
    gp = LinearizedGP(make_net(case.output_shape), case.make()).fit(X, y, missing="nan")
    same(gp, whole, X)
    with pytest.raises(ValueError, match=r'NaN.*first in row 0.*missing="nan"'):
        gp.fit(X, y)


@pytest.mark.parametrize("mean", ["network", "refit"])
def test_single_missing_targets_of_independent_outputs(mean):
    """Two outputs on a shared network: the observed one of a row is a datum of its own."""
    y = torch.stack([X.sum(1), X.prod(1)], 1)
    y[:6, 0] = NAN
    y[6:, 1] = NAN
    net = make_net(2)
    gp = LinearizedGP(net, Gaussian(0.1), mean=mean).fit(X, y, missing="nan")

    class Picked(torch.nn.Module):
        """The observed output of each row, chosen by a third input."""

        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            outputs = self.net(x[:, :2])
            return torch.where(x[:, 2:] > 0, outputs[:, :1], outputs[:, 1:])

    chosen = torch.cat([torch.full((6,), -1.0), torch.full((6,), 1.0)]).unsqueeze(1)
    single = LinearizedGP(Picked(), Gaussian(0.1), mean=mean)
    targets = torch.where(chosen > 0, y[:, :1], y[:, 1:])
    single.fit(torch.cat([X, chosen], 1), targets)
    close = torch.testing.assert_close
    close(gp.log_marginal_likelihood(), single.log_marginal_likelihood(), rtol=1e-9, atol=0)
    first = torch.cat([X, torch.ones(12, 1)], 1)
    close(gp.predict(X).variance[:, 0], single.predict(first).variance[:, 0], rtol=1e-9, atol=0)
    close(gp.predict(X).mean[:, 0], single.predict(first).mean[:, 0], rtol=1e-9, atol=1e-12)


def test_missing_targets_come_from_loaders_too():
    y = X.sum(1, keepdim=True)
    y[3] = NAN
    loader = DataLoader(TensorDataset(X, y), batch_size=5)
    gp = LinearizedGP(make_net()).fit(loader, missing="nan")
    same(gp, LinearizedGP(make_net()).fit(X, y, missing="nan"), X)
    with pytest.raises(ValueError, match=r'targets in batch 0: has 1 NaN.*missing="nan"'):
        LinearizedGP(make_net()).fit(loader)


def test_nan_inputs_and_infinite_targets_are_always_refused():
    y = X.sum(1)
    broken = X.clone()
    broken[2, 0] = NAN
    with pytest.raises(ValueError, match="X: has 1 NaN or infinite values, first in row 2"):
        LinearizedGP(make_net()).fit(broken, y, missing="nan")
    y[5] = torch.inf
    with pytest.raises(ValueError, match="y: has 1 infinite values, first in row 5"):
        LinearizedGP(make_net()).fit(X, y, missing="nan")


def test_nothing_observed_at_all_is_refused():
    y = torch.full((12,), NAN)
    with pytest.raises(ValueError, match="y: every target is missing"):
        LinearizedGP(make_net()).fit(X, y, missing="nan")


def test_likelihoods_that_need_all_targets_say_so():
    class Whole(Gaussian):
        allows_missing = False

    with pytest.raises(ValueError, match=r"missing.*Whole can't have missing targets"):
        LinearizedGP(make_net(), Whole()).fit(X, X.sum(1), missing="nan")
    with pytest.raises(ValueError, match='missing: expected "error" or "nan"'):
        LinearizedGP(make_net()).fit(X, X.sum(1), missing="drop")


@pytest.mark.parametrize("case", [c for c in LIKELIHOODS if c.missing], ids=str)
def test_log_prob_takes_missing_targets(case):
    prediction = shared(case.name).predict(X, generator=torch.Generator().manual_seed(0))
    y = targets_of(case).double()
    expected = prediction.log_prob(y)
    y[0] = NAN
    found = prediction.log_prob(y)
    assert found[0].abs() < 1e-12
    torch.testing.assert_close(found[1:], expected[1:], rtol=1e-12, atol=0)


def test_correlated_noise_with_a_missing_target():
    covariance = torch.tensor([[0.3, 0.1], [0.1, 0.2]], dtype=torch.float64)
    y = torch.stack([X.sum(1), X.prod(1)], 1)
    y[0] = NAN
    gp = LinearizedGP(make_net(2), CorrelatedGaussian(covariance)).fit(X, y, missing="nan")
    rest = LinearizedGP(make_net(2), CorrelatedGaussian(covariance)).fit(X[1:], y[1:])
    same(gp, rest, X)
