"""Leverage and leave-one-out densities, against dense formulas and refits."""

import numpy as np
import pytest
import torch

from lingp import LinearizedGP
from lingp.likelihoods import Gaussian
from lingp.metrics import influence
from lingp.training import effective_parameters


@pytest.fixture(scope="module")
def data():
    source = torch.Generator().manual_seed(0)
    X = torch.randn(12, 2, generator=source, dtype=torch.float64)
    X[3] = torch.tensor([5.0, -5.0])
    return X, X.sin().sum(1, keepdim=True)


def network(num_outputs=1):
    torch.manual_seed(0)
    layers = torch.nn.Linear(2, 6), torch.nn.Tanh(), torch.nn.Linear(6, num_outputs)
    return torch.nn.Sequential(*layers).double()


@pytest.mark.parametrize("inference", ["function_space", "weight_space"])
def test_gaussian_is_the_smoother_and_refits(data, inference):
    X, y = data
    net = network()
    gp = LinearizedGP(net, Gaussian(noise=0.2), prior=1.5, mean="refit", inference=inference)
    found = influence(gp.fit(X, y))
    parts = torch.func.jacrev(lambda w: torch.func.functional_call(net, w, X).squeeze(1))(
        {name: p.detach() for name, p in net.named_parameters()}
    )
    J = torch.cat([part.reshape(12, -1) for part in parts.values()], 1)
    kernel = J @ J.mT / 1.5
    smoother = kernel @ torch.linalg.inv(kernel + 0.2 * torch.eye(12).double())
    np.testing.assert_allclose(found.leverage, smoother.diagonal(), rtol=1e-9)
    assert found.leverage.sum() == pytest.approx(effective_parameters(gp), rel=1e-9)
    np.testing.assert_allclose(found.log_density, gp.predict(X).log_prob(y).detach(), rtol=1e-8)
    for row in (0, 3):
        rest = [n for n in range(12) if n != row]
        without = LinearizedGP(net, Gaussian(noise=0.2), prior=1.5, mean="refit")
        expected = without.fit(X[rest], y[rest]).predict(X[[row]]).log_prob(y[[row]])
        assert found.leave_one_out[row] == pytest.approx(float(expected), rel=1e-7)
    assert found.leverage.argmax() == 3


def test_labels_sum_to_the_effective_parameters(data):
    X, _ = data
    gp = LinearizedGP(network(3), "categorical", prior=1.0, sites="mean").fit(
        X, torch.arange(12) % 3
    )
    found = influence(gp)
    assert found.leverage.sum() == pytest.approx(effective_parameters(gp), rel=1e-8)
    np.testing.assert_allclose(found.gain, found.log_density - found.leave_one_out)
    assert (found.gain > 0).all()  # curvature of a datum always pulls its own probability up


def test_what_is_no_gp_is_refused():
    with pytest.raises(TypeError, match="gp: expected a fitted LinearizedGP, got Linear"):
        influence(torch.nn.Linear(1, 1))
