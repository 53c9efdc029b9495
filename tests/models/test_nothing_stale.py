"""After any change, everything is as if the GP had been fitted with it."""

from __future__ import annotations

import pytest
import torch
from trained_networks import make_inputs, make_net, same

from lingp.likelihoods import (
    Bernoulli,
    Categorical,
    CorrelatedGaussian,
    Gaussian,
    Heteroscedastic,
    KnownNoiseGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
    Tempered,
)
from lingp.models import LinearizedGP
from lingp.priors import Isotropic, Layerwise

X = make_inputs(6)
TWO = torch.stack([X.sum(1), X.prod(1)], 1)
COUNTS = torch.arange(6) % 4
MODELS = {
    "gaussian": (lambda: Gaussian([0.1, 0.2]), 2, TWO),
    "correlated": (lambda: CorrelatedGaussian(torch.tensor([[0.3, 0.1], [0.1, 0.2]])), 2, TWO),
    "known noise": (
        lambda: KnownNoiseGaussian(noise=0.1),
        2,
        torch.stack([TWO, torch.full_like(TWO, 0.2)], -1),
    ),
    "tempered": (lambda: Tempered(Categorical(), 2.0, learn=True), 4, COUNTS),
    "negative binomial": (lambda: NegativeBinomial(0.5), 1, COUNTS),
    "ordinal": (lambda: Ordinal(4), 1, COUNTS),
    "student-t": (StudentT, 1, X.sum(1)),
    "heteroscedastic": (Heteroscedastic, 2, X.sum(1, keepdim=True)),
}
MEANS = pytest.mark.parametrize("mean", ["network", "refit"])


def results(gp):
    """Everything that depends on hyperparameters."""
    generator = torch.Generator().manual_seed(0)
    prediction = gp.predict(X, num_samples=16, generator=generator)
    left_out = gp.leave_one_out(num_samples=16, generator=generator)
    mode = gp.mode()
    return {
        "mean": prediction.mean,
        "variance": prediction.variance,
        "left out": left_out.variance,
        "mode": mode.outputs,
        "joint": gp.predict_joint(X[:2], num_samples=8, generator=generator).covariance,
        "gradients": torch.cat(
            [
                torch.zeros(1) if g is None else g.flatten()
                for g in torch.autograd.grad(
                    gp.log_marginal_likelihood(),
                    [p for _, p in gp.named_hyperparameters() if p.requires_grad],
                    allow_unused=True,
                )
            ]
        ),
    }


def agree(gp, fresh):
    same(gp, fresh, X, rtol=1e-7)
    found, expected = results(gp), results(fresh)
    for name in expected:
        scale = float(expected[name].detach().abs().max())
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-7 * scale)


def fresh_fit(gp, net, y, mean):
    return LinearizedGP(net, gp.likelihood, prior=gp.prior, mean=mean).fit(X, y)


@MEANS
@pytest.mark.parametrize("name", MODELS)
def test_changing_any_hyperparameter(name, mean):
    make, outputs, y = MODELS[name]
    net = make_net(outputs)
    gp = LinearizedGP(net, make(), prior=Layerwise(2.0), mean=mean).fit(X, y)
    names = [n for n, _ in gp.named_hyperparameters()]
    assert len(names) >= 1
    for hyperparameter in names:
        results(gp)  # whatever is kept is kept now
        with torch.no_grad():
            dict(gp.named_hyperparameters())[hyperparameter].add_(0.3)
        agree(gp, fresh_fit(gp, net, y, mean))


@MEANS
def test_exchanging_prior_or_likelihood(mean):
    """Also for one that takes other targets: they are checked again, as they were given."""
    net, y = make_net(4), COUNTS
    gp = LinearizedGP(net, Categorical(), mean=mean).fit(X, y, class_weight="balanced")
    changes = [
        ("prior", Isotropic(3.0)),
        ("prior", Layerwise(0.5)),
        ("likelihood", Tempered(Categorical(), 3.0)),
        ("likelihood", Categorical(4)),
    ]
    for name, value in changes:
        results(gp)
        setattr(gp, name, value)
        fresh = LinearizedGP(net, gp.likelihood, prior=gp.prior, mean=mean)
        agree(gp, fresh.fit(X, y, class_weight="balanced"))


def test_exchanging_a_likelihood_for_one_of_other_targets():
    net = make_net(1)
    y = COUNTS.clamp(max=1)
    gp = LinearizedGP(net, "bernoulli").fit(X, y)
    for likelihood in (Gaussian(0.3), Poisson(), Bernoulli(), StudentT()):
        gp.predict(X)
        gp.likelihood = likelihood
        agree(gp, LinearizedGP(net, likelihood).fit(X, y))
    gp.likelihood = "gaussian"
    assert isinstance(gp.inference_choice.space, str)
    assert isinstance(gp.likelihood, Gaussian)


def test_a_likelihood_that_doesnt_fit_the_data_is_refused_and_can_be_put_right():
    net = make_net(1)
    y = X.sum(1)
    gp = LinearizedGP(net, Gaussian(0.1)).fit(X, y)
    expected = gp.predict(X).variance
    gp.likelihood = Bernoulli()
    with pytest.raises(ValueError, match="y: expected labels 0 or 1"):
        gp.predict(X)
    gp.likelihood = Gaussian(0.1)
    assert torch.equal(gp.predict(X).variance, expected)


@MEANS
def test_optimising_leaves_nothing_stale(mean):
    net, y = make_net(2), TWO
    gp = LinearizedGP(net, Gaussian(1.0), prior=5.0, mean=mean).fit(X, y)
    results(gp)
    gp.optimize_hyperparameters(max_evaluations=5, num_restarts=0, tolerance=1.0)
    agree(gp, fresh_fit(gp, net, y, mean))


def test_the_posterior_is_not_computed_twice():
    calls = []

    class Counted:
        def __call__(self, training, prior, root):
            from lingp.inference import WeightSpace

            calls.append(None)
            return WeightSpace(training, prior, root)

    gp = LinearizedGP(make_net(1), Gaussian(0.1), inference=Counted()).fit(X, X.sum(1))
    for _ in range(3):
        gp.predict(X)
        gp.sample(X)
        gp.posterior(X)
    assert len(calls) == 1
