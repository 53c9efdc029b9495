"""Predictives of noise whose variance is uncertain too: the mixture, natural and delta."""

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

from lingp.likelihoods import Heteroscedastic

METHODS = Heteroscedastic.methods
methods = pytest.mark.parametrize("method", METHODS)
links = pytest.mark.parametrize("link", ["softplus", "exp"])


def by_trapezoids(likelihood, y, mean, covariance, reach, number):
    """log p(y) of one target by trapezoids over f₂, f₁ integrated in closed form."""
    z = torch.linspace(-reach, reach, number, dtype=torch.float64)
    s = covariance[1, 1].sqrt()
    c = covariance[0, 1] / s
    g = likelihood.precision(mean[1] + s * z)
    variance = 1 / g + (covariance[0, 0] - c.square()) / g.square()
    residual = y - (mean[0] + c * z) / g
    log_density = -0.5 * ((2 * math.pi * variance).log() + residual.square() / variance)
    log_prior = -0.5 * z.square() - 0.5 * math.log(2 * math.pi)
    return (log_density + log_prior).logsumexp(0) + (z[1] - z[0]).log()


@links
@pytest.mark.parametrize("deviation", [1e-3, 0.3, 1.0, 3.0, 10.0])
def test_log_prob_in_the_tails_and_for_any_uncertainty(link, deviation):
    likelihood = Heteroscedastic(link)
    cases = [
        (y, mean, first, correlation)
        for y in (0.0, 2.0, -30.0, 1e3)
        for mean in ((0.0, 0.0), (20.0, 5.0), (-5.0, -4.0))
        for first in (1e-3, 10.0)
        for correlation in (0.0, 0.9)
    ]
    y = torch.tensor([[case[0]] for case in cases], dtype=torch.float64)
    mean = torch.tensor([case[1] for case in cases], dtype=torch.float64)
    covariance = torch.stack(
        [
            torch.tensor(
                [[a * a, r * a * deviation], [r * a * deviation, deviation**2]],
                dtype=torch.float64,
            )
            for _, _, a, r in cases
        ]
    )
    log_prob = likelihood.predictive(mean, covariance).log_prob(y)
    assert log_prob.isfinite().all()
    shown = log_prob > -700  # trapezoids stay within 40 standard deviations
    expected = torch.stack(
        [
            by_trapezoids(likelihood, *case, reach=40, number=100_001)
            for case, show in zip(zip(y[:, 0], mean, covariance, strict=True), shown, strict=True)
            if show
        ]
    )
    close(log_prob[shown], expected, rtol=0, atol=1e-6)


def test_log_prob_against_a_double_integral():
    likelihood = Heteroscedastic()
    mean, covariance = latents(3, 2)
    root = torch.linalg.cholesky(covariance)
    z = torch.linspace(-9, 9, 361, dtype=torch.float64)
    grid = torch.cartesian_prod(z, z)
    f = mean + torch.einsum("ncd,sd->snc", root, grid)
    y = torch.tensor([[0.7], [-2.0], [5.0]], dtype=torch.float64)
    log_prior = -0.5 * grid.square().sum(-1) - math.log(2 * math.pi) + 2 * math.log(0.05)
    expected = (likelihood.log_prob(y, f) + log_prior[:, None]).logsumexp(0)
    close(likelihood.predictive(mean, covariance).log_prob(y), expected, rtol=0, atol=1e-9)


def test_a_mean_known_given_the_noise_is_a_narrow_peak():
    # f₁ = -f₂ - 9: with f₂ < -40 the density is a spike where f₁ = g y, ever so close to 0
    mean = torch.tensor([[-5.0, -4.0]], dtype=torch.float64)
    covariance = torch.tensor([[[1.0, -30.0], [-30.0, 900.0]]], dtype=torch.float64)
    value = Heteroscedastic("exp").predictive(mean, covariance).log_prob(torch.ones(1, 1).double())
    # ∫ N(y; σ² (-5 - z), σ²) N(z) dz = g N(z = -5)
    spike = -40 - 12.5 - 0.5 * math.log(2 * math.pi)
    assert value.item() > spike - 1e-6


def test_moments_of_a_log_normal_variance():
    mean, covariance = latents(5, 2, scale=0.7)
    predictive = Heteroscedastic("exp").predictive(mean, covariance)
    (m1, m2), (v1, v2) = mean.mT, covariance.diagonal(dim1=1, dim2=2).mT
    cross = covariance[:, 0, 1]
    noise = (-m2 + v2 / 2).exp()
    first = noise * (m1 - cross)
    second = (-2 * m2 + 2 * v2).exp() * (v1 + (m1 - 2 * cross).square())
    close(predictive.aleatoric_variance[:, 0], noise)
    close(predictive.mean[:, 0], first)
    close(predictive.epistemic_variance[:, 0], second - first.square(), rtol=1e-8)
    close(predictive.variance[:, 0], noise + second - first.square(), rtol=1e-8)


def test_density_distribution_function_and_interval_agree():
    mean, covariance = latents(3, 2, scale=0.8)
    predictive = Heteroscedastic().predictive(mean, covariance)
    lower, upper = predictive.interval(0.9)
    close(predictive.cdf(lower), torch.full((3, 1), 0.05).double(), rtol=1e-5)
    close(predictive.cdf(upper), torch.full((3, 1), 0.95).double(), rtol=1e-5)
    share = torch.linspace(0, 1, 101, dtype=torch.float64)
    y = lower + share * (upper - lower)  # (3, 101)
    many = Heteroscedastic().predictive(
        mean.repeat_interleave(101, 0), covariance.repeat_interleave(101, 0)
    )
    density = many.log_prob(y.reshape(-1, 1)).exp().reshape(3, 101)
    close(torch.trapezoid(density, y), torch.full((3,), 0.9).double(), rtol=1e-3)


def test_natural_and_delta_are_normal_approximations():
    likelihood = Heteroscedastic()
    mean, covariance = latents(4, 4)
    f = mean.clone()
    slopes = torch.func.vmap(torch.func.jacrev(likelihood.conditional_mean))(f)
    natural = likelihood.predictive(mean, covariance, "natural")
    delta = likelihood.predictive(mean, covariance, "delta")
    noise = likelihood.conditional_variance(mean)
    for predictive, used in ((delta, slopes), (natural, slopes * torch.tensor([1, 1, 0, 0]))):
        close(predictive.mean, likelihood.conditional_mean(mean))
        close(predictive.aleatoric_variance, noise)
        total = used @ covariance @ used.mT
        close(predictive.epistemic_variance, total.diagonal(dim1=1, dim2=2))
        y = torch.ones(4, 2, dtype=torch.float64)
        normal = torch.distributions.MultivariateNormal(
            predictive.mean, total + torch.diag_embed(noise)
        )
        close(predictive.log_prob(y), normal.log_prob(y))


@methods
def test_little_uncertainty_is_the_likelihood_itself(method):
    likelihood = Heteroscedastic()
    mean, covariance = latents(4, 4)
    y = torch.ones(4, 2, dtype=torch.float64)
    predictive = likelihood.predictive(
        mean, 1e-12 * covariance, method, num_samples=100, generator=generator()
    )
    close(predictive.log_prob(y), likelihood.log_prob(y, mean), rtol=1e-4)
    close(predictive.mean, likelihood.conditional_mean(mean), rtol=1e-4)
    close(predictive.variance, likelihood.conditional_variance(mean), rtol=1e-4)


def by_double_trapezoids(likelihood, y, mean, covariance):
    """log p(y) of two targets by trapezoids over both f₂, f₁ integrated in closed form."""
    z = torch.linspace(-8, 8, 201, dtype=torch.float64)
    grid = torch.cartesian_prod(z, z)
    v1, v12, v2 = covariance[:2, :2], covariance[:2, 2:], covariance[2:, 2:]
    root = torch.linalg.cholesky(v2)
    g = likelihood.precision(mean[2:] + grid @ root.mT)
    slope = torch.linalg.solve_triangular(root, v12.mT, upper=False).mT
    noise = torch.diag_embed(1 / g)
    total = noise + noise @ (v1 - slope @ slope.mT) @ noise
    centre = (mean[:2] + grid @ slope.mT) / g
    log_density = torch.distributions.MultivariateNormal(centre, total).log_prob(y)
    log_prior = -0.5 * grid.square().sum(-1) - math.log(2 * math.pi)
    return (log_density + log_prior).logsumexp(0) + 2 * (z[1] - z[0]).log()


@links
def test_joint_log_prob_of_coupled_targets(link):
    likelihood = Heteroscedastic(link)
    mean, covariance = latents(4, 4, scale=0.7)
    y = likelihood.sample(mean, generator=generator(2))
    y[0] *= 10
    value = likelihood.predictive(mean, covariance).log_prob(y)
    expected = torch.stack(
        [by_double_trapezoids(likelihood, *row) for row in zip(y, mean, covariance, strict=True)]
    )
    close(value, expected, rtol=0, atol=5e-3)


@links
def test_joint_log_prob_under_a_covariance_of_rank_one(link):
    likelihood = Heteroscedastic(link)
    mean, covariance = latents(5, 4, rank=1, scale=0.5)
    y = likelihood.sample(mean, generator=generator(2))
    draws = likelihood.predictive(
        mean, covariance, "monte_carlo", num_samples=100_000, generator=generator()
    )
    value = likelihood.predictive(mean, covariance).log_prob(y)
    close(value, draws.log_prob(y), rtol=0, atol=0.03)


def test_uncoupled_targets_are_exact_and_missing_ones_say_nothing():
    likelihood = Heteroscedastic()
    mean, covariance = latents(4, 4)
    y = torch.randn(4, 2, generator=generator()).double()
    alone = []
    for target in (0, 1):
        pick = torch.tensor([target, target + 2])
        part = likelihood.predictive(mean[:, pick], covariance[:, pick][:, :, pick])
        alone.append(part.log_prob(y[:, [target]]))
    coupled = likelihood.predictive(mean, covariance)
    same = torch.eye(2, dtype=torch.bool).repeat(2, 2)
    apart = likelihood.predictive(mean, covariance.masked_fill(~same, 0.0))
    close(apart.log_prob(y), alone[0] + alone[1])
    partly = y.clone()
    partly[:2, 0], partly[2, 1], partly[3] = math.nan, math.nan, math.nan
    expected = torch.stack([alone[1][0], alone[1][1], alone[0][2], torch.zeros(()).double()])
    close(coupled.log_prob(partly), expected)


def test_a_missing_target_among_coupled_ones():
    likelihood = Heteroscedastic()
    mean, covariance = latents(3, 6, scale=0.7)
    y = torch.randn(3, 3, generator=generator()).double()
    y[:, 1] = math.nan
    keep = torch.tensor([0, 2, 3, 5])
    rest = likelihood.predictive(mean[:, keep], covariance[:, keep][:, :, keep])
    value = likelihood.predictive(mean, covariance).log_prob(y)
    close(value, rest.log_prob(y[:, [0, 2]]), rtol=0, atol=0.02)


@pytest.mark.parametrize("method", ["mixture", "monte_carlo"])
def test_draws(method):
    mean, covariance = latents(3, 4, scale=0.3)
    predictive = Heteroscedastic().predictive(
        mean + 1, covariance, method, num_samples=200_000, generator=generator()
    )
    check_draws_agree(predictive, num_samples=20_000)


@methods
@pytest.mark.parametrize("num_targets", [1, 2])
def test_rows_are_independent(method, num_targets):
    mean, covariance = latents(4, 2 * num_targets)
    y = torch.randn(4, num_targets, generator=generator()).double()

    def make(mean, covariance):
        return Heteroscedastic().predictive(
            mean, covariance, method, num_samples=200, generator=generator()
        )

    check_rows_are_independent(make, mean, covariance, y)


@links
def test_log_prob_is_differentiable(link):
    likelihood = Heteroscedastic(link)
    for num_targets in (1, 2):
        mean, covariance = latents(2, 2 * num_targets, scale=0.7)
        y = torch.ones(2, num_targets, dtype=torch.float64)

        def log_prob(mean, covariance, y=y):
            symmetric = 0.5 * (covariance + covariance.mT)
            return likelihood.predictive(mean, symmetric).log_prob(y)

        value = log_prob(mean.requires_grad_(), covariance.requires_grad_())
        gradients = torch.autograd.grad(value.sum(), (mean, covariance))
        direction = [gradient.sign() for gradient in gradients]
        step = 1e-4
        with torch.no_grad():
            ahead, behind = (
                log_prob(mean + e * direction[0], covariance + e * direction[1]).sum()
                for e in (step, -step)
            )
        slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
        # the nodes of the joint follow the mode, which gradients leave out
        tolerance = 1e-6 if num_targets == 1 else 1e-2
        close((ahead - behind) / (2 * step), slope, rtol=tolerance)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "monte_carlo"])
def test_deterministic_methods_touch_no_randomness(method):
    mean, covariance = latents(3, 4)

    def everything():
        predictive = Heteroscedastic().predictive(mean, covariance, method)
        predictive.log_prob(torch.ones(3, 2).double())
        return predictive.mean, predictive.variance, predictive.interval(0.5)

    check_global_randomness_is_left_alone(everything)


def test_single_precision():
    mean, covariance = latents(4, 2)
    y = torch.ones(4, 1, dtype=torch.float64)
    double = Heteroscedastic().predictive(mean, covariance)
    single = Heteroscedastic().predictive(mean.float(), covariance.float())
    close(single.log_prob(y.float()).double(), double.log_prob(y), rtol=0, atol=1e-4)
    close(single.mean.double(), double.mean, rtol=1e-3, atol=1e-3)
    close(single.variance.double(), double.variance, rtol=1e-3, atol=1e-3)
