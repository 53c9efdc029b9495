"""Heteroscedastic Gaussian: values, bounds, targets and draws; derivatives are in the table."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from likelihood_cases.continuous import outputs_at
from torch.distributions import Normal

from lingp.likelihoods import Heteroscedastic, as_likelihood

LINKS = ["softplus", "exp"]
every_link = pytest.mark.parametrize("link", LINKS)
close = torch.testing.assert_close


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parameters(f, link):
    """Mean and standard deviation from the definition η₁ = μ/σ², -2 η₂ = g = 1/σ²."""
    f1, f2 = f.chunk(2, -1)
    precision = f2.exp() if link == "exp" else torch.logaddexp(f2, torch.zeros_like(f2))
    return f1 / precision, precision.rsqrt()


@every_link
def test_log_prob_is_the_normal_density(link):
    likelihood, f, y = Heteroscedastic(link), 2 * tensor(7, 6), tensor(7, 3, seed=1)
    mean, sigma = parameters(f, link)
    expected = Normal(mean, sigma).log_prob(y).sum(-1)
    close(likelihood.log_prob(y, f), expected, rtol=1e-13, atol=1e-13)
    close(likelihood.conditional_mean(f), mean, rtol=1e-13, atol=0)
    close(likelihood.conditional_variance(f), sigma.square(), rtol=1e-13, atol=0)


@every_link
def test_log_prob_is_the_natural_form_of_the_paper(link):
    likelihood, f, y = Heteroscedastic(link), tensor(7, 2), tensor(7, 1, seed=1)
    g = f[:, 1:].exp() if link == "exp" else torch.nn.functional.softplus(f[:, 1:])
    eta1, eta2 = f[:, :1], -0.5 * g
    terms = eta1 * y + eta2 * y.square() + eta1.square() / (4 * eta2) + 0.5 * (-2 * eta2).log()
    expected = (terms - 0.5 * math.log(2 * math.pi)).sum(-1)
    close(likelihood.log_prob(y, f), expected, rtol=1e-13, atol=1e-13)


@every_link
@pytest.mark.parametrize("sigma", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("mean", [0.0, 1.0, -1e3])
def test_extreme_deviations_against_fifty_digits(link, sigma, mean):
    f = outputs_at([sigma], [mean], link)
    y = torch.tensor([[mean + 1.5 * sigma]], dtype=torch.float64)
    likelihood = Heteroscedastic(link)
    with mpmath.workdps(50):
        f1, f2 = (mpmath.mpf(v) for v in f[0].tolist())
        g = mpmath.exp(f2) if link == "exp" else mpmath.log1p(mpmath.exp(f2))
        slope = mpmath.mpf(1) if link == "exp" else 1 / (1 + mpmath.exp(-f2)) / g
        z = mpmath.sqrt(g) * (mpmath.mpf(y.item()) - f1 / g)
        log_prob = (mpmath.log(g) - mpmath.log(2 * mpmath.pi) - z * z) / 2
        residual = [z / mpmath.sqrt(g), slope * (1 - z * z - 2 * z * f1 / mpmath.sqrt(g)) / 2]
        root = [1 / mpmath.sqrt(g), -slope * f1 / mpmath.sqrt(g), slope / mpmath.sqrt(2)]
    # y - μ carries the rounding of both, ε |μ|, which z has in units of σ
    lost = 1e-15 * (1 + abs(mean) / sigma) * 10
    assert likelihood.log_prob(y, f).item() == pytest.approx(float(log_prob), rel=lost)
    # r₂ is a difference of (y² - μ²) / σ² and 1, with that rounding times μ / σ
    found = likelihood.residual(y, f)[0].tolist()
    assert found[0] == pytest.approx(float(residual[0]), rel=lost)
    assert found[1] == pytest.approx(
        float(residual[1]), rel=1e-13, abs=lost * (1 + abs(mean) / sigma)
    )
    values = likelihood.curvature_root(y, f).values[0]
    found = [values[0, 0].item(), values[1, 0].item(), values[1, 1].item()]
    # ε |f₂| is what exp(f₂) loses of its argument's rounding
    assert found == pytest.approx([float(v) for v in root], rel=1e-14)
    assert values[0, 1] == 0


@every_link
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_far_beyond_the_bounds_stay_finite(link, dtype):
    likelihood = Heteroscedastic(link)
    f2 = torch.tensor([-1e30, -1e3, -40.0, -39.0, 0.0, 39.0, 1e3, 1e30], dtype=dtype)
    f = torch.stack([torch.full_like(f2, 1e3), f2], 1)
    y = torch.full((8, 1), -1e3, dtype=dtype)
    root = likelihood.curvature_root(y, f).values
    curvature = root @ root.mT
    for value in (
        root,
        curvature,
        likelihood.log_prob(y, f),
        likelihood.residual(y, f),
        likelihood.conditional_mean(f),
        likelihood.conditional_variance(f),
        likelihood.sample(f, generator=torch.Generator().manual_seed(0)),
    ):
        assert value.dtype == dtype
        assert torch.isfinite(value).all()
    sigma = likelihood.conditional_variance(f).sqrt()
    assert sigma.max() < 5e8
    assert sigma.min() > 2e-9


@every_link
def test_a_latent_beyond_the_bounds_has_no_gradient(link):
    f = torch.tensor([[1e3, -1e3], [1.0, -41.0], [1.0, -39.0]]).double().requires_grad_()
    likelihood, y = Heteroscedastic(link), torch.ones(3, 1).double()
    (gradient,) = torch.autograd.grad(likelihood.log_prob(y, f).sum(), f)
    assert torch.isfinite(gradient).all()
    close(gradient, likelihood.residual(y, f), rtol=1e-12, atol=0)
    assert gradient[:, 1].tolist()[:2] == [0.0, 0.0]
    assert gradient[2, 1] != 0


@every_link
def test_curvature_is_the_fisher_information(link):
    # E[r rᵀ] by Gauss-Hermite quadrature: r is quadratic in y, so 3 nodes a target would do
    likelihood, f = Heteroscedastic(link), tensor(5, 4)
    nodes, weights = map(torch.tensor, np.polynomial.hermite_e.hermegauss(8))
    weights /= weights.sum()
    mean, sigma = parameters(f, link)
    total = torch.zeros(5, 4, 4, dtype=torch.float64)
    for a, wa in zip(nodes, weights, strict=True):
        for b, wb in zip(nodes, weights, strict=True):
            r = likelihood.residual(mean + sigma * torch.stack([a, b]), f)
            total += wa * wb * r.unsqueeze(-1) * r.unsqueeze(-2)
    values = likelihood.curvature_root(tensor(5, 2), f).values
    close(values @ values.mT, total, rtol=1e-12, atol=1e-12)


def test_targets_take_half_as_many_places_as_outputs():
    likelihood = Heteroscedastic()
    assert likelihood.target_shape((6,)) == (3,)
    assert likelihood.moment_shape((6,)) == (3,)
    for shape in ((5,), (5, 1)):
        assert likelihood.check_targets(torch.ones(shape), (2,), torch.float64).shape == (5, 1)
    assert likelihood.check_targets(torch.ones(5, 3), (6,), torch.float64).shape == (5, 3)
    with pytest.raises(ValueError, match=r"y: has shape \(N, 2\).*asks for \(N, 1\)"):
        likelihood.check_targets(torch.ones(5, 2), (2,), torch.float64)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (0,)])
def test_outputs_must_come_in_pairs(shape):
    with pytest.raises(ValueError, match=r"net: Heteroscedastic needs outputs \(2T,\)"):
        Heteroscedastic().check_targets(torch.ones(5), shape, torch.float64)


def test_link_is_one_of_two():
    with pytest.raises(ValueError, match=r"link.*'square'"):
        Heteroscedastic("square")
    assert as_likelihood("heteroscedastic").link == "softplus"
    assert "exp" in repr(Heteroscedastic("exp"))


@every_link
def test_a_floor_is_the_least_precision(link):
    plain, likelihood = Heteroscedastic(link), Heteroscedastic(link, floor=0.25)
    f2 = torch.tensor([-1e30, -1e3, -39.0, -1.0, 0.0, 2.0, 30.0, 1e30]).double()
    close(likelihood.precision(f2), plain.precision(f2) + 0.25, rtol=0, atol=0)
    f2 = f2[2:-1].requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.precision(f2).log().sum(), f2)
    close(likelihood.relative_slope(f2), slope, rtol=1e-13, atol=0)
    # f₂ may be anything: half of its mass is at the floor, where y ~ N(2, 4 + 16)
    mean, covariance = torch.tensor([[0.5, -1.0]]), torch.diag(torch.tensor([1.0, 1e6]))
    moments = mean.double(), covariance.double().unsqueeze(0)
    lower, upper = likelihood.predictive(*moments).interval(0.9)
    tail = 1.2816 * math.sqrt(20)  # 0.05 of all is a tenth of half
    assert (lower.item(), upper.item()) == pytest.approx((2 - tail, 2 + tail), rel=2e-3)
    assert plain.predictive(*moments).interval(0.9)[1] > 1e6
    for floor in (-0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match="floor: expected a finite precision >= 0, got"):
            Heteroscedastic(link, floor=floor)
    assert "floor=0.25" in repr(likelihood)


@every_link
def test_draws_have_the_moments(link):
    likelihood, f, count = Heteroscedastic(link), tensor(4, 4), 40_000
    draws = likelihood.sample(f.expand(count, -1, -1), generator=torch.Generator().manual_seed(0))
    mean, sigma = parameters(f, link)
    assert draws.shape == (count, 4, 2)
    assert ((draws.mean(0) - mean) / sigma).abs().max() < 5 / math.sqrt(count)
    ratio = ((draws - mean) / sigma).square().mean(0)
    assert (ratio - 1).abs().max() < 5 * math.sqrt(2 / count)


def test_a_missing_target_leaves_the_others():
    likelihood, f, y = Heteroscedastic(), tensor(3, 4), tensor(3, 2, seed=1)
    y[:, 1] = torch.nan
    alone = f[:, [0, 2]]
    close(likelihood.log_prob(y, f), likelihood.log_prob(y[:, :1], alone))
    close(likelihood.residual(y, f)[:, [0, 2]], likelihood.residual(y[:, :1], alone))
    values = likelihood.curvature_root(y, f).values
    assert values[:, [1, 3]].abs().max() == 0
