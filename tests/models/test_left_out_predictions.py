"""Leave-one-out predictions at the front door, against refits without each row."""

from __future__ import annotations

import pytest
import torch
from trained_networks import LIKELIHOODS, make_inputs, make_net, shared, targets_of

from lingp.likelihoods import CorrelatedGaussian, Gaussian, KnownNoiseGaussian
from lingp.models import LinearizedGP

X = make_inputs(9)
Y = torch.stack([X.sum(1), X.prod(1)], 1)
KNOWN = torch.stack([Y, torch.linspace(0.1, 0.5, 18, dtype=torch.float64).view(9, 2)], -1)
NOISE = torch.tensor([[0.3, 0.1], [0.1, 0.2]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [(Gaussian([0.1, 0.3]), Y), (CorrelatedGaussian(NOISE), Y), (KnownNoiseGaussian(), KNOWN)],
)
def test_gaussian_noise_is_what_refits_give(likelihood, y):
    def make():
        return LinearizedGP(make_net(2), likelihood, mean="refit")

    prediction = make().fit(X, y).leave_one_out()
    known = y[..., 1] if y.dim() == 3 else None
    log_predictive = prediction.log_predictive
    assert log_predictive.shape == (9,)
    for n in range(9):
        rest = [i for i in range(9) if i != n]
        refit = make().fit(X[rest], y[rest])
        expected = refit.predict(X[n : n + 1], known=None if known is None else known[n : n + 1])
        close = torch.testing.assert_close
        close(prediction.mean[n], expected.mean[0], rtol=1e-8, atol=1e-10)
        close(prediction.variance[n], expected.variance[0], rtol=1e-8, atol=0)
        close(log_predictive[n], expected.log_prob(y[n : n + 1])[0], rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore::lingp.inference.RoundingWarning")
@pytest.mark.parametrize("case", LIKELIHOODS, ids=str)
def test_every_likelihood(case):
    gp, y = shared(case.name), targets_of(case)
    state = torch.get_rng_state()
    made = [
        gp.leave_one_out(num_samples=32, generator=torch.Generator().manual_seed(0))
        for _ in range(2)
    ]
    assert torch.equal(made[0].log_predictive, made[1].log_predictive)
    assert torch.equal(made[0].log_predictive, made[0].log_prob(y))
    assert made[0].mean.shape == (12, *case.make().moment_shape(case.output_shape))
    assert not made[0].mean.isnan().any()
    assert torch.equal(torch.get_rng_state(), state)
    assert "LeaveOneOutPrediction(12 rows" in repr(made[0])


def test_missing_targets_score_nothing():
    y = Y.clone()
    y[0] = torch.nan
    gp = LinearizedGP(make_net(2), Gaussian(0.1)).fit(X, y, missing="nan")
    left_out = gp.leave_one_out()
    assert left_out.log_predictive[0] == 0
    torch.testing.assert_close(left_out.variance[0], gp.predict(X[:1]).variance[0])


def test_labels_are_scaled_as_in_predictions():
    labels = (X.sum(1) > 0).long()
    gp = LinearizedGP(make_net(2), "categorical", prior=0.1, mean_scale=2.0).fit(X, labels)
    scaled = gp.leave_one_out()
    assert scaled.mean_scale == gp.mean_scale == 2.0
    gp.mean_scale = 1.0
    plain = gp.leave_one_out()
    assert torch.equal(plain.latent_mean, scaled.latent_mean)
    expected = gp.likelihood.predictive(
        scaled.mean_scale * plain.latent_mean, plain.latent_covariance
    )
    torch.testing.assert_close(scaled.probs, expected.mean)


def test_missing_targets_may_have_known_quantities():
    y = KNOWN.clone()
    y[0] = torch.nan
    gp = LinearizedGP(make_net(2), KnownNoiseGaussian()).fit(X, y, missing="nan")
    left_out = gp.leave_one_out()
    assert left_out.log_predictive[0] == 0
    assert not left_out.mean.isnan().any()
