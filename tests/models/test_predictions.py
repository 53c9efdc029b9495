"""What holds for predictions of every likelihood."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from trained_networks import LIKELIHOODS, known_of, make_inputs, make_net, shared, targets_of

from lingp.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    KnownNoiseGaussian,
    Ordinal,
    Poisson,
    Tempered,
)
from lingp.models import LinearizedGP

every = pytest.mark.parametrize("case", LIKELIHOODS, ids=str)
methods = pytest.mark.parametrize(
    ("case", "method"),
    [(case, method) for case in LIKELIHOODS for method in case.make().methods],
    ids=str,
)
pytestmark = pytest.mark.filterwarnings("ignore::lingp.inference.RoundingWarning")

X, X_TEST = make_inputs(12), make_inputs(7, seed=1)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def ends(prediction):
    """Of the central interval; none where labels have no order."""
    if isinstance(prediction.layout.likelihood, Categorical):
        with pytest.raises(TypeError, match="class labels have no order"):
            prediction.interval(0.8)
        return ()
    lower, upper = prediction.interval(0.8)
    assert (lower <= upper).all()
    return lower, upper


def known_at(case):
    return known_of(case, targets_of(case, 7, seed=1))


@methods
def test_variances_sum_shapes_fit_and_a_generator_makes_results_repeatable(case, method):
    gp, known, y = shared(case.name), known_at(case), targets_of(case, 7, seed=1)
    options = {"method": method, "known": known, "num_samples": 64}
    state = torch.get_rng_state()
    one, two = (gp.predict(X_TEST, generator=seeded(3), **options) for _ in range(2))
    close = torch.testing.assert_close
    close(one.epistemic_variance + one.aleatoric_variance, one.variance, rtol=1e-12, atol=0)
    assert (one.epistemic_variance >= 0).all()
    assert (one.aleatoric_variance >= 0).all()
    assert one.mean.shape == (7, *case.make().moment_shape(case.output_shape))
    assert one.variance.shape == one.stddev.shape == one.mean.shape
    draws = one.sample(3, generator=seeded(4))
    shape = case.make().target_shape(case.output_shape)
    assert draws.shape in ((3, 7, *shape), (3, 7, *shape[:-1]))
    assert draws[0].numel() == y.numel() // (1 if known is None else 2)
    values = (one.mean, one.variance, one.log_prob(y), draws, *ends(one))
    again = (two.mean, two.variance, two.log_prob(y), two.sample(3, generator=seeded(4)))
    for value, other in zip(values, (*again, *ends(two)), strict=True):
        assert torch.equal(value, other)
        assert value.dtype == torch.float64
        assert not value.isnan().any()
        assert not value.requires_grad
    assert one.log_prob(y).shape == (7,)
    assert all(end.shape == draws.shape[1:] for end in ends(one))
    assert torch.equal(torch.get_rng_state(), state)


@methods
def test_batches_dont_matter(case, method):
    """Not those that memory asks for, and not how the user splits rows."""
    known, y = known_at(case), targets_of(case, 7, seed=1)
    options = {"method": method, "num_samples": 64}
    whole = shared(case.name).predict(X_TEST, known=known, generator=seeded(), **options)
    small = shared(case.name, memory_budget=30_000 * case.num_outputs**2)
    pieces = small.predict(X_TEST, known=known, generator=seeded(), **options)
    close = torch.testing.assert_close
    for name in ("mean", "epistemic_variance", "aleatoric_variance"):
        close(getattr(pieces, name), getattr(whole, name), rtol=1e-8, atol=1e-9)
    close(pieces.log_prob(y), whole.log_prob(y), rtol=1e-8, atol=1e-8)
    part = shared(case.name).predict(
        X_TEST[4:], known=None if known is None else known[4:], generator=seeded(), **options
    )
    close(part.mean, whole.mean[4:], rtol=1e-8, atol=1e-9)
    close(part.epistemic_variance, whole.epistemic_variance[4:], rtol=1e-8, atol=1e-9)
    close(part.log_prob(y[4:]), whole.log_prob(y)[4:], rtol=1e-8, atol=1e-8)


@every
def test_nothing_of_the_users_is_touched(case):
    net = make_net(case.output_shape).train()
    net(X).sum().backward()
    weights = copy.deepcopy(net.state_dict())
    grads = [p.grad.clone() for p in net.parameters()]
    likelihood = case.make()
    hyperparameters = [p.detach().clone() for p in likelihood.parameters()]
    y = targets_of(case)
    given, state = y.clone(), torch.get_rng_state()
    gp = LinearizedGP(net, likelihood, prior=2.0).fit(X, y)
    prediction = gp.predict(X_TEST, known=known_at(case), num_samples=8, generator=seeded())
    prediction.sample(generator=seeded())
    prediction.log_prob(targets_of(case, 7))
    ends(prediction)
    gp.log_marginal_likelihood()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(y, given)
    assert net.training
    assert torch.is_grad_enabled()
    for name, value in net.state_dict().items():
        assert torch.equal(value, weights[name])
    for p, grad in zip(net.parameters(), grads, strict=True):
        assert torch.equal(p.grad, grad)
        assert p.requires_grad
    for p, value in zip(likelihood.parameters(), hyperparameters, strict=True):
        assert torch.equal(p.detach(), value)
        assert p.grad is None


@every
def test_a_prediction_keeps_its_hyperparameters(case):
    gp, known = shared(case.name), known_at(case)
    y = targets_of(case, 7, seed=1)
    before, later = (
        gp.predict(X_TEST, known=known, num_samples=16, generator=seeded()) for _ in range(2)
    )
    expected = before.mean, before.variance, before.log_prob(y)
    saved = [p.detach().clone() for p in gp.likelihood.parameters()]
    with torch.no_grad():
        for parameter in gp.likelihood.parameters():
            parameter.add_(0.3)
        found = later.mean, later.variance, later.log_prob(y)
        for parameter, value in zip(gp.likelihood.parameters(), saved, strict=True):
            parameter.copy_(value)
    for value, other in zip(found, expected, strict=True):
        assert torch.equal(value, other)


@every
def test_every_likelihood_runs_in_single_precision(case):
    gp = LinearizedGP(make_net(case.output_shape), case.make(), prior=2.0, dtype=torch.float32)
    gp.fit(X, targets_of(case))
    prediction = gp.predict(X_TEST, known=known_at(case), num_samples=64, generator=seeded())
    assert prediction.mean.dtype == prediction.variance.dtype == torch.float32
    assert not prediction.mean.isnan().any()
    assert not prediction.variance.isnan().any()
    assert gp.log_marginal_likelihood().dtype == torch.float32


# Class labels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", Categorical.methods)
def test_probabilities_and_entropy(method):
    y = torch.arange(12) % 3
    prediction = (
        LinearizedGP(make_net(3), "categorical")
        .fit(X, y)
        .predict(X_TEST, method=method, generator=seeded())
    )
    probs = prediction.probs
    assert probs.shape == (7, 3)
    torch.testing.assert_close(probs.sum(1), torch.ones(7, dtype=torch.float64))
    torch.testing.assert_close(probs, prediction.mean)
    entropy = -(probs * probs.log()).sum(1)
    torch.testing.assert_close(prediction.entropy, entropy)
    assert (prediction.entropy <= math.log(3) + 1e-12).all()
    log_probs = torch.stack([prediction.log_prob(torch.full((7,), k)) for k in range(3)], 1)
    torch.testing.assert_close(log_probs.exp(), probs, rtol=1e-5, atol=1e-6)


def test_mutual_information_is_what_draws_of_functions_say():
    y = torch.arange(12) % 3
    for likelihood, outputs, labels in (
        (Categorical(), 3, y),
        (Categorical(), (2, 3), torch.stack([y, y.flip(0)], 1)),
        (Bernoulli(), (), y.clamp(max=1)),
        (Ordinal(3), (), y),
    ):
        gp = LinearizedGP(make_net(outputs), likelihood).fit(X, labels)
        found = gp.predict(X_TEST).mutual_information
        draws = gp.sample(X_TEST, 4000, generator=seeded())
        p = likelihood.conditional_mean(draws.reshape(4000, 7, -1))
        p = torch.cat([1 - p, p], -1) if p.shape[-1] == 1 else p
        p = p.unflatten(-1, (*labels.shape[1:], -1))
        entropies = [-torch.special.xlogy(q, q).sum(-1) for q in (p.mean(0), p)]
        expected = entropies[0] - entropies[1].mean(0)
        torch.testing.assert_close(found, expected, rtol=0, atol=0.03)
        assert (found > 0).all()


def test_one_logit_and_two_logits_are_the_same_model():
    """A softmax over (0, f) is a logistic function of f."""

    class TwoLogits(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            f = self.net(x)
            return torch.cat([torch.zeros_like(f), f], 1)

    y = (X.sum(1) > 0).long()
    one = LinearizedGP(make_net(1), Bernoulli()).fit(X, y)
    two = LinearizedGP(TwoLogits(make_net(1)), Categorical()).fit(X, y)
    close = torch.testing.assert_close
    close(one.log_marginal_likelihood(), two.log_marginal_likelihood(), rtol=1e-9, atol=0)
    first, second = one.predict(X_TEST), two.predict(X_TEST)
    # 512 nodes in one dimension or two find a scale of the mean that differs by some 1e-4
    assert one.mean_scale == pytest.approx(two.mean_scale, rel=1e-3)
    close(first.mean[:, 0], second.probs[:, 1], rtol=1e-3, atol=1e-4)
    close(first.entropy, second.entropy, rtol=1e-3, atol=1e-4)
    one.mean_scale = two.mean_scale = 1.0
    first, second = one.predict(X_TEST), two.predict(X_TEST)
    close(first.mean[:, 0], second.probs[:, 1], rtol=1e-5, atol=1e-6)
    close(first.entropy, second.entropy, rtol=1e-4, atol=1e-5)
    assert first.probs.shape == (7, 2)


def test_probabilities_are_for_labels_only():
    prediction = LinearizedGP(make_net()).fit(X, X.sum(1)).predict(X_TEST)
    for name in ("probs", "entropy"):
        with pytest.raises(AttributeError, match=r"probs: .* is not over class labels"):
            getattr(prediction, name)
    with pytest.raises(AttributeError, match="not over class labels"):
        _ = prediction.mutual_information


# Known quantities -------------------------------------------------------------------------------


def test_known_noise_is_added_to_predictions():
    training = torch.stack([X.sum(1), torch.full((12,), 0.2).double()], -1)
    gp = LinearizedGP(make_net(), KnownNoiseGaussian()).fit(X, training)
    variances = torch.linspace(0.1, 0.7, 7, dtype=torch.float64)
    prediction = gp.predict(X_TEST, known=variances)
    close = torch.testing.assert_close
    close(prediction.aleatoric_variance[:, 0], variances)
    close(gp.predict(X_TEST, known=0.3).aleatoric_variance, torch.full((7, 1), 0.3).double())
    y = X_TEST.sum(1)
    expected = torch.distributions.Normal(prediction.mean[:, 0], prediction.stddev[:, 0])
    close(prediction.log_prob(y), expected.log_prob(y))
    close(prediction.log_prob(torch.stack([y, variances], 1)), expected.log_prob(y))


def test_exposure_multiplies_rates():
    counts = torch.arange(12) % 4
    training = torch.stack([counts.double(), torch.full((12,), 2.0).double()], -1)
    gp = LinearizedGP(make_net(), Poisson(exposure=True)).fit(X, training)
    one, ten = gp.predict(X_TEST, known=1.0), gp.predict(X_TEST, known=10.0)
    torch.testing.assert_close(ten.mean, 10 * one.mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        ten.epistemic_variance, 100 * one.epistemic_variance, rtol=1e-6, atol=0
    )


def test_wrong_known_quantities_are_named():
    gp = LinearizedGP(make_net()).fit(X, X.sum(1))
    with pytest.raises(ValueError, match="known: Gaussian has no known quantity"):
        gp.predict(X_TEST, known=1.0)
    training = torch.stack([X.sum(1), torch.ones(12).double()], -1)
    gp = LinearizedGP(make_net(), KnownNoiseGaussian()).fit(X, training)
    with pytest.raises(ValueError, match="known: expected one number, or one for each of 7 rows"):
        gp.predict(X_TEST, known=torch.ones(3))
    with pytest.raises(ValueError, match="known: has 1 NaN"):
        gp.predict(X_TEST, known=float("nan"))


def test_an_unknown_method_is_named():
    gp = LinearizedGP(make_net()).fit(X, X.sum(1))
    with pytest.raises(ValueError, match="method: Gaussian predicts by 'exact', got 'probit'"):
        gp.predict(X_TEST, method="probit")


def test_tempering_is_for_inference_only():
    y = torch.arange(12) % 3
    # without what leaves out one repetition of a row
    plain = {"sites": "mean", "mean_scale": 1.0}
    cold = LinearizedGP(make_net(3), Tempered(Categorical(), 0.5), **plain).fit(X, y)
    double = LinearizedGP(make_net(3), Categorical(), **plain)
    double.fit(X, y, sample_weight=torch.full((12,), 2))
    first, second = cold.predict(X_TEST), double.predict(X_TEST)
    torch.testing.assert_close(first.probs, second.probs, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        cold.log_marginal_likelihood(), double.log_marginal_likelihood(), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("name", ["gaussian", "poisson", "distribution-gamma", "student-t"])
def test_half_of_the_targets_lie_below_the_median(name):
    prediction = shared(name).predict(X_TEST)
    draws = prediction.sample(4000, generator=seeded())
    assert prediction.median.shape == draws.shape[1:]
    three_errors = 3 * 0.5 / math.sqrt(4000)
    assert ((draws < prediction.median).double().mean(0) < 0.5 + three_errors).all()
    assert ((draws <= prediction.median).double().mean(0) > 0.5 - three_errors).all()
    if name == "gaussian":
        assert torch.equal(prediction.median, prediction.mean)
    if name == "poisson":
        assert torch.equal(prediction.median, prediction.median.round())


def test_a_far_tail_of_the_precision_moves_the_mean_and_not_the_median():
    mean = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    medians, means = [], []
    for variance in (1e-6, 9.0):
        covariance = torch.diag(torch.tensor([1e-6, variance], dtype=torch.float64)).unsqueeze(0)
        predictive = Heteroscedastic("exp").predictive(mean, covariance)
        medians.append(float(predictive.median))
        means.append(float(predictive.mean))
    assert means[1] > 50 * means[0]
    assert medians[1] == pytest.approx(medians[0], rel=0.5)


def test_gaussian_predictions_need_no_draws():
    state = torch.get_rng_state()
    LinearizedGP(make_net(), Gaussian()).fit(X, X.sum(1)).predict(X_TEST).interval()
    assert torch.equal(torch.get_rng_state(), state)
