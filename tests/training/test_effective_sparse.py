"""The effective number of parameters of sparse posteriors, and training with them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lingp
from lingp.training import effective_parameters, train_with_evidence


@pytest.fixture
def data():
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, x.sin().sum(1, keepdim=True)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()


@pytest.mark.parametrize("prior", [1.0, lingp.priors.Layerwise(0.5)])
def test_all_data_as_inducing_points_give_the_exact_number(data, prior):
    exact = lingp.LinearizedGP(network(), prior=prior).fit(*data, progress=False)
    sparse = lingp.LinearizedGP(network(), prior=prior, inference=lingp.Sparse(60))
    found = effective_parameters(sparse.fit(*data, progress=False))
    # the inducing points' kernel is factorised with a jitter of 1e-10 or so
    assert found == pytest.approx(effective_parameters(exact), rel=1e-6)


@pytest.mark.parametrize("complement", ["fitted", "prior"])
def test_few_inducing_points_give_the_slope_of_their_bound(data, complement):
    def gp(precision):
        inference = lingp.Sparse(
            8, complement=complement, generator=torch.Generator().manual_seed(0)
        )
        made = lingp.LinearizedGP(network(), prior=precision, inference=inference)
        return made.fit(*data, progress=False)

    def volume(precision):
        parts = gp(precision).evidence()
        return parts.log_determinant + parts.left_out

    step = 1e-4
    slope = (volume(2 - 2 * step) - volume(2 + 2 * step)) / (2 * step)
    # central differences are off by step², and the jitter of the kernel's factor by less
    assert effective_parameters(gp(2.0)) == pytest.approx(slope, rel=1e-5)


def test_networks_are_trained_with_sparse_inference(data):
    trained = train_with_evidence(
        network(), *data, inference=lingp.Sparse(20), steps=40, updates=2, progress=False
    )
    assert len(trained.history) >= 2
    assert 0 < trained.history[-1].effective_parameters < 33
