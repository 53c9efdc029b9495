"""Predictives of targets with one latent output each."""

from __future__ import annotations

import math

import pytest
import torch
from predictive_checks import (
    check_draws_agree,
    check_global_randomness_is_left_alone,
    check_rows_are_independent,
    close,
    generator,
    latents,
)
from scipy import stats

from lingp.likelihoods import Bernoulli, Binomial, NegativeBinomial, Ordinal, Poisson, StudentT
from lingp.likelihoods.elementwise import ElementwiseLikelihood

FAMILIES = {
    "bernoulli": Bernoulli(),
    "binomial": Binomial(7),
    "poisson": Poisson(),
    "negative_binomial": NegativeBinomial([0.5, 0.1]),
    "student_t": StudentT([9.0, 12.0], 0.3),
    "ordinal": Ordinal(4),
}
every = pytest.mark.parametrize("likelihood", FAMILIES.values(), ids=FAMILIES)


def targets(likelihood, mean):
    return likelihood.sample(mean, generator=generator(3)).detach()


def by_trapezoids(function, mean, variance):
    """E function(f) for f ~ N(mean, variance), elementwise over the last axis."""
    z = torch.linspace(-12, 12, 1001, dtype=torch.float64)
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi) * (z[1] - z[0])
    f = mean + variance.sqrt() * z[:, None, None]
    return torch.einsum("s,s...->...", density, function(f))


@every
@torch.no_grad()
def test_moments(likelihood):
    mean, covariance = latents(4, 2, scale=0.7)
    variance = covariance.diagonal(dim1=1, dim2=2)
    predictive = likelihood.predictive(mean, covariance)
    expected = by_trapezoids(likelihood.conditional_mean, mean, variance)
    close(predictive.mean, expected, rtol=1e-9)
    spread = by_trapezoids(
        lambda f: (likelihood.conditional_mean(f) - expected).square(), mean, variance
    )
    close(predictive.epistemic_variance, spread, rtol=1e-9)
    inner = by_trapezoids(likelihood.conditional_variance, mean, variance)
    close(predictive.aleatoric_variance, inner, rtol=1e-9)
    close(predictive.variance, spread + inner, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 100.0])
def test_moments_whatever_the_scale_of_the_latent(scale):
    mean = torch.tensor([[0.3], [-2.0]], dtype=torch.float64)
    variance = torch.full((2, 1, 1), scale**2, dtype=torch.float64)
    predictive = Bernoulli().predictive(mean, variance)
    if scale < 1:
        p = mean.sigmoid()
        close(predictive.epistemic_variance, (p * (1 - p) * scale).square(), rtol=1e-6)
    close(predictive.mean, predictive.log_prob(torch.ones_like(mean)).exp()[:, None])
    total = predictive.mean * (1 - predictive.mean)
    close(predictive.variance, total)
    if scale > 1:  # a probit in the limit, where f is the sign of a normal
        close(predictive.mean, torch.special.ndtr(mean / scale), rtol=1e-3)


def test_no_uncertainty_is_the_likelihood_itself():
    mean, covariance = latents(3, 2)
    for likelihood in FAMILIES.values():
        y = targets(likelihood, mean)
        predictive = likelihood.predictive(mean, 0 * covariance)
        close(predictive.log_prob(y), likelihood.log_prob(y, mean))
        close(predictive.mean, likelihood.conditional_mean(mean))
        close(predictive.epistemic_variance, 0 * predictive.mean)


def test_log_normal_rates_have_closed_moments():
    mean, covariance = latents(3, 1)
    exposure = torch.tensor([[2.0], [0.5], [1.0]], dtype=torch.float64)
    predictive = Poisson(exposure=True).at(exposure).predictive(mean, covariance)
    rate = stats.lognorm(covariance[:, 0, 0].sqrt(), scale=mean[:, 0].exp())
    close(predictive.mean[:, 0], torch.as_tensor(rate.mean()) * exposure[:, 0])
    close(predictive.epistemic_variance[:, 0], torch.as_tensor(rate.var()) * exposure[:, 0] ** 2)


@pytest.mark.parametrize("name", [n for n in FAMILIES if FAMILIES[n].cdf_support == "counts"])
def test_probabilities_of_counts_sum_to_one(name):
    likelihood = FAMILIES[name]
    mean, covariance = latents(3, 2, scale=0.5)
    predictive = likelihood.predictive(mean - 1, covariance)
    largest = {"Bernoulli": 1, "Binomial": 7, "Ordinal": 3}.get(type(likelihood).__name__, 200)
    counts = torch.arange(largest + 1, dtype=torch.float64)
    repeated = likelihood.predictive(
        (mean - 1).repeat(len(counts), 1), covariance.repeat(len(counts), 1, 1)
    )
    each = repeated.log_prob_each(counts.repeat_interleave(3)[:, None].expand(-1, 2))
    each = each.detach().exp().reshape(-1, 3, 2)
    close(each.sum(0), torch.ones(3, 2, dtype=torch.float64), rtol=1e-9)
    close(predictive.cdf(torch.full((3, 2), 1.0).double()), each[:2].sum(0), rtol=1e-6)
    lower, upper = predictive.interval(0.8)
    below = each.cumsum(0)
    for end, level in ((lower, 0.1), (upper, 0.9)):
        expected = (below < level).sum(0).double()
        assert torch.equal(end, expected)


def test_interval_of_a_continuous_target():
    mean, covariance = latents(4, 2)
    predictive = StudentT([4.0, 12.0], 1e-3).predictive(1e4 * mean, covariance)
    lower, upper = predictive.interval(0.9)
    close(predictive.cdf(lower), torch.full_like(mean, 0.05), rtol=1e-6)
    close(predictive.cdf(upper), torch.full_like(mean, 0.95), rtol=1e-6)


def test_without_a_distribution_function_the_interval_is_from_draws(monkeypatch):
    monkeypatch.setattr(Poisson, "cdf_support", None)
    mean, covariance = latents(4, 1, scale=0.3)
    predictive = Poisson().predictive(mean + 2, covariance)
    lower, upper = predictive.interval(0.8)
    again = predictive.interval(0.8)
    assert torch.equal(lower, again[0])
    assert (predictive.cdf(lower) > 0.08).all()
    assert (predictive.cdf(upper) > 0.88).all()
    assert (predictive.cdf(upper - 1) < 0.92).all()


@every
def test_draws(likelihood):
    mean, covariance = latents(3, 2, scale=0.5)

    def indicators(draws):
        classes = torch.arange(4, dtype=draws.dtype)
        return (draws.unsqueeze(-1) == classes).double().flatten(-2)

    predictive = likelihood.predictive(mean, covariance)
    check_draws_agree(predictive, indicators if isinstance(likelihood, Ordinal) else None)


@every
def test_rows_are_independent(likelihood):
    mean, covariance = latents(5, 2)
    y = targets(likelihood, mean)
    check_rows_are_independent(likelihood.predictive, mean, covariance, y)

    def by_draws(mean, covariance):
        return likelihood.predictive(
            mean, covariance, "monte_carlo", num_samples=50, generator=generator()
        )

    check_rows_are_independent(by_draws, mean, covariance, y)


@every
@torch.no_grad()
@pytest.mark.parametrize("rank", [1, 2])
def test_joint_log_prob_of_coupled_targets(likelihood, rank):
    mean, covariance = latents(4, 2, rank=rank, scale=0.7)
    y = targets(likelihood, mean)
    joint = likelihood.predictive(mean, covariance).log_prob(y)
    # given f_0, f_1 is normal: outer quadrature by trapezoids, inner by adaptive quadrature
    z = torch.linspace(-8, 8, 161, dtype=torch.float64)
    scale = covariance[:, 0, 0].sqrt()
    slope = covariance[:, 0, 1] / scale
    rest = (covariance[:, 1, 1] - slope.square()).clamp(min=0)
    centre = torch.stack([mean[:, 0] + scale * z[:, None], mean[:, 1] + slope * z[:, None]], -1)
    inner = torch.zeros(len(z) * 4, 2, 2, dtype=torch.float64)
    inner[:, 1, 1] = rest.repeat(len(z))
    values = likelihood.predictive(centre.flatten(0, 1), inner).log_prob(y.repeat(len(z), 1))
    log_prior = -0.5 * z.square() + math.log(float(z[1] - z[0]) / math.sqrt(2 * math.pi))
    expected = (values.reshape(len(z), 4) + log_prior[:, None]).logsumexp(0)
    close(joint, expected, rtol=0, atol=2e-3)
    draws = likelihood.predictive(
        mean, covariance, "monte_carlo", num_samples=20_000, generator=generator()
    )
    close(draws.log_prob(y), expected, rtol=0, atol=0.1)


def test_uncoupled_targets_are_exact_and_missing_ones_say_nothing():
    mean, covariance = latents(4, 2)
    y = torch.tensor([[0.0, 3.0], [2.0, 1.0], [1.0, 0.0], [5.0, 1.0]], dtype=torch.float64)
    predictive = Poisson().predictive(mean, covariance)
    alone = [
        Poisson().predictive(mean[:, [c]], covariance[:, c, c, None, None]).log_prob(y[:, [c]])
        for c in (0, 1)
    ]
    diagonal = torch.diag_embed(covariance.diagonal(dim1=1, dim2=2))
    close(Poisson().predictive(mean, diagonal).log_prob(y), alone[0] + alone[1])
    partly = y.clone()
    partly[:2, 0], partly[2, 1], partly[3] = math.nan, math.nan, math.nan
    expected = torch.stack([alone[1][0], alone[1][1], alone[0][2], torch.zeros(()).double()])
    close(predictive.log_prob(partly), expected)


def test_class_probabilities():
    mean, covariance = latents(3, 1)
    probs = Bernoulli().predictive(mean, covariance).probs
    assert probs.shape == (3, 2)
    close(probs.sum(-1), torch.ones(3, dtype=torch.float64))
    with pytest.raises(AttributeError, match="not over class labels"):
        _ = Poisson().predictive(mean, covariance).probs


@every
def test_log_prob_is_differentiable(likelihood):
    mean, covariance = latents(2, 2, scale=0.7)
    y = targets(likelihood, mean)
    diagonal = covariance.diagonal(dim1=1, dim2=2).clone()
    inputs = [p for p in likelihood.parameters() if p.requires_grad]
    inputs += [mean.requires_grad_(), diagonal.requires_grad_()]

    def log_prob(*_):
        return likelihood.predictive(mean, torch.diag_embed(diagonal)).log_prob(y)

    assert torch.autograd.gradcheck(log_prob, inputs, rtol=1e-5, atol=1e-8)


def test_deterministic_results_touch_no_randomness():
    mean, covariance = latents(3, 2)

    def everything():
        predictive = Poisson().predictive(mean, covariance)
        predictive.log_prob(torch.ones_like(mean))
        return predictive.mean, predictive.variance, predictive.interval(0.5)

    check_global_randomness_is_left_alone(everything)


@every
def test_single_precision(likelihood):
    mean, covariance = latents(4, 2)
    y = targets(likelihood, mean)
    single = likelihood.predictive(mean.float(), covariance.float())
    double = likelihood.predictive(mean, covariance)
    for name in ("mean", "variance"):
        value = getattr(single, name)
        assert value.dtype == torch.float32
        close(value.double(), getattr(double, name), rtol=1e-4, atol=1e-5)
    close(single.log_prob(y.float()).double(), double.log_prob(y), rtol=1e-3, atol=1e-3)


def test_many_rows_stay_in_pieces(monkeypatch):
    from lingp.likelihoods.predictives import quadrature

    mean, covariance = latents(20, 1)
    y = torch.ones_like(mean)
    whole = Poisson().predictive(mean, covariance).log_prob(y)
    monkeypatch.setattr(quadrature, "_CHUNK", 1)
    close(Poisson().predictive(mean, covariance).log_prob(y), whole, rtol=1e-14)


def test_a_bad_number_of_samples():
    mean, covariance = latents(2, 1)
    with pytest.raises(ValueError, match="num_samples: expected at least 1, got 0"):
        Bernoulli().predictive(mean, covariance, "monte_carlo", num_samples=0)


def test_likelihoods_without_a_distribution_function_say_so():
    with pytest.raises(AttributeError, match="no distribution function"):
        ElementwiseLikelihood.cdf_each(Bernoulli(), torch.zeros(1), torch.zeros(1))
