"""Kinds of one's own go the whole way.

Fit, evidence, hyperparameters, predictions, draws, a file and back, metrics, plots; and several
processes, in `inference/test_distributed.py`.
"""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest
import torch
from toy_kinds import KINDS, Logistic, LowRank, ToyDiagonal, plain_net

import lingp
from lingp import metrics, plots
from lingp.inference import WeightSpace
from lingp.linearization import check_rule


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_the_whole_way(kind, tmp_path):
    make, options = KINDS[kind]
    torch.manual_seed(0)
    net = make()
    x = torch.linspace(-2, 2, 30, dtype=torch.float64).unsqueeze(1)
    y = x.sin() + 0.1 * torch.randn(30, 1, dtype=torch.float64)
    gp = lingp.LinearizedGP(net, **options()).fit(x, y, progress=False)
    before = gp.evidence().value
    gp.optimize_hyperparameters()
    assert gp.evidence().value >= before
    assert 0 < float(gp.laplace.posterior().effective_parameters()) < gp.linearized.num_parameters
    prediction = gp.predict(x, progress=False)
    assert torch.isfinite(prediction.log_prob(y)).all()
    low, high = prediction.interval(0.9)
    assert bool((low < high).all())
    draws = gp.sample(x, 4000, generator=torch.Generator().manual_seed(1))
    spread = draws.var(0) / gp.posterior(x).variance.view_as(draws[0])
    assert float((spread - 1).abs().max()) < 5 * math.sqrt(2 / 4000)  # of a sample variance
    assert metrics.nll(prediction, y) == pytest.approx(-float(prediction.log_prob(y).mean()))
    plots.bands(gp)
    plt.close("all")
    gp.add_data(x[:3] + 0.05, y[:3])
    assert gp.laplace.training.num_data == 33

    gp.save(tmp_path / "gp.pt")
    back = lingp.LinearizedGP.load(tmp_path / "gp.pt", make())
    assert torch.equal(back.predict(x).variance, gp.predict(x).variance)
    assert torch.equal(back.predict(x).mean, gp.predict(x).mean)
    again = back.evidence().value
    assert again == pytest.approx(gp.evidence().value, rel=1e-12)


def test_the_rule_gives_the_jacobian_of_autograd():
    errors = check_rule(LowRank(3, 8, 2).double(), torch.randn(5, 3, dtype=torch.float64))
    assert max(errors.values()) < 1e-12


def test_the_diagonal_is_that_of_the_exact_precision():
    torch.manual_seed(0)
    x = torch.randn(20, 1, dtype=torch.float64)
    gp = lingp.LinearizedGP(plain_net(), inference=ToyDiagonal()).fit(x, x, progress=False)
    laplace = gp.laplace
    exact = WeightSpace(laplace.training, laplace.prior, laplace.curvature_root())
    factor = exact.factorization.factor
    torch.testing.assert_close(
        laplace.posterior().diagonal + 1, (factor @ factor.mT).diagonal(), rtol=1e-12, atol=0
    )


def test_the_logistic_density_has_the_derivatives_it_says():
    likelihood = Logistic(0.3)
    f = torch.linspace(-2, 2, 8, dtype=torch.float64).unsqueeze(1).requires_grad_()
    y = torch.zeros_like(f)
    log_prob = likelihood.log_prob(y, f)
    (slope,) = torch.autograd.grad(log_prob.sum(), f, create_graph=True)
    torch.testing.assert_close(likelihood.residual(y, f), slope)
    (curvature,) = torch.autograd.grad(slope.sum(), f)
    root = likelihood.curvature_root(y, f).dense().squeeze(-1)
    torch.testing.assert_close(root.square(), -curvature)
