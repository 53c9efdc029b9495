"""Adaptive quadrature: exact on what it should be, whatever the scales."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from lingp.likelihoods import Bernoulli, Binomial, NegativeBinomial, Ordinal, Poisson, StudentT
from lingp.likelihoods.predictives.quadrature import Panels, adapt, log_integral

LIKELIHOODS = {
    "bernoulli": (Bernoulli(), [0.0, 1.0]),
    "binomial": (Binomial(1000), [0.0, 3.0, 1000.0]),
    "poisson": (Poisson(), [0.0, 2.0, 1e6]),
    "negative_binomial": (NegativeBinomial(0.5), [0.0, 2.0, 1000.0]),
    "ordinal": (Ordinal(5), [0.0, 2.0, 4.0]),
    "student_t": (StudentT(4.0, 1.0), [0.0, 5.0, -200.0]),
    "student_t_narrow": (StudentT(2.5, 0.01), [0.0, 5.0, -200.0]),
    "student_t_nearly_normal": (StudentT(1000.0, 0.1), [0.0, 5.0]),
}
MEANS = [-10.0, 0.0, 7.0]
SCALES = [1e-3, 0.1, 1.0, 10.0, 100.0]


def breakpoints(*points):
    return torch.tensor(points, dtype=torch.float64)[:, None, None]


def integral(function, *points):
    panels = adapt(lambda z, rows: function(z), breakpoints(*points))
    return panels.sum(function(panels.nodes()), 1).item()


@pytest.mark.parametrize("degree", range(23))
def test_one_panel_is_exact_for_polynomials(degree):
    panels = Panels.between(breakpoints(-1.0, 1.0))
    value = panels.sum(panels.nodes() ** degree, 1).item()
    assert value == pytest.approx((1 + (-1) ** degree) / (degree + 1), abs=1e-15)


@pytest.mark.parametrize("width", [1e-6, 1e-3, 1.0])
def test_steps_of_any_width(width):
    step = integral(lambda z: torch.sigmoid((z - 0.3) / width), -1.0, 1.0)
    exact = width * (math.log1p(math.exp(-0.7 / width)) - math.log1p(math.exp(-1.3 / width))) + 0.7
    assert step == pytest.approx(exact, rel=1e-10)


def test_kinks():
    value = integral(lambda z: (-(z - 0.3).abs()).exp(), -1.0, 1.0)
    assert value == pytest.approx(2 - math.exp(-1.3) - math.exp(-0.7), rel=1e-10)


def test_each_row_and_column_converges_on_its_own():
    width = torch.tensor([[1.0, 1e-2], [1e-5, 10.0]], dtype=torch.float64)

    def function(z, rows):
        return torch.sigmoid(z / width[rows])

    points = breakpoints(-1.0, 0.7).expand(2, 2, 2)
    panels = adapt(function, points)
    value = panels.sum(function(panels.nodes(), panels.rows), 2)
    exact = width * (
        torch.nn.functional.softplus(0.7 / width, threshold=50)
        - torch.nn.functional.softplus(-1 / width, threshold=50)
    )
    torch.testing.assert_close(value, exact, rtol=1e-11, atol=0)
    alone = adapt(lambda z, rows: function(z, rows + 1), points[:, :1])
    assert len(alone.rows) == (panels.rows == 1).sum()


def test_a_function_that_is_not_finite_ends():
    assert math.isnan(integral(lambda z: z.log(), -1.0, 1.0))


def test_far_below_the_smallest_float():
    h = lambda z, rows: -0.5 * z.square() - 1e5  # noqa: E731
    value = log_integral(h, breakpoints(-10.0, 0.0, 10.0), torch.full((1, 1), -1e5).double())
    assert value.item() == pytest.approx(0.5 * math.log(2 * math.pi) - 1e5, rel=1e-15)


def by_trapezoids(likelihood, y, mean, scale):
    """log ∫ p(y | m + s z) N(z) dz by 40,000 trapezoids where the integrand matters."""
    if isinstance(likelihood, StudentT):
        return by_scale_mixture(likelihood, y, mean, scale)
    target = torch.tensor(y, dtype=torch.float64)

    def h(z):
        return likelihood.log_prob_each(target, mean + scale * z) - 0.5 * z.square()

    z = torch.linspace(-1, 1, 10_001, dtype=torch.float64)
    z = torch.cat([4000 * z, 40 * z, (y + 50 * z - mean) / scale]).sort().values
    for number in (20_001, 40_001):
        values = h(z)
        kept = (values > values.max() - 45).nonzero()
        ends = z[(kept[0] - 1).clamp(min=0)], z[(kept[-1] + 1).clamp(max=len(z) - 1)]
        z = torch.linspace(ends[0].item(), ends[1].item(), number, dtype=torch.float64)
    return (h(z).logsumexp(0) + (z[1] - z[0]).log()).item() - 0.5 * math.log(2 * math.pi)


def by_scale_mixture(likelihood, y, mean, scale):
    """Student's t is normal given its precision λ ~ Gamma(ν/2, ν/2), and so is then y."""
    half = 0.5 * likelihood.degrees_of_freedom
    t = torch.linspace(-60, 20, 100_001, dtype=torch.float64)  # log λ
    log_gamma = half * half.log() - half.lgamma() + half * t - half * t.exp()
    variance = scale**2 + likelihood.scale.square() * (-t).exp()
    log_normal = -0.5 * ((2 * math.pi * variance).log() + (y - mean) ** 2 / variance)
    return ((log_gamma + log_normal).logsumexp(0) + (t[1] - t[0]).log()).item()


@torch.no_grad()
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_log_prob_whatever_the_scale_of_the_latent(name):
    likelihood, targets = LIKELIHOODS[name]
    grid = [(y, m, s) for y in targets for m in MEANS for s in SCALES]
    y, mean, scale = torch.tensor(grid, dtype=torch.float64).unsqueeze(-1).unbind(1)
    log_prob = likelihood.predictive(mean, scale.square().unsqueeze(-1)).log_prob(y)
    values = [by_trapezoids(likelihood, *case) for case in grid]
    expected = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(log_prob, expected, rtol=1e-9, atol=1e-9)


def test_log_prob_against_thirty_digits():
    mpmath.mp.dps = 30

    def log_integral_of(density, mean, scale, points):
        integrand = lambda z: density(mean + scale * z) * mpmath.npdf(z)  # noqa: E731
        return float(mpmath.log(mpmath.quad(integrand, points)))

    mean = torch.tensor([[2.0], [-30.0]], dtype=torch.float64)
    covariance = torch.tensor([[[9.0]], [[400.0]]], dtype=torch.float64)
    ones = torch.ones_like(mean)
    points = [-20, -8, -4, -2, -1, 0, 0.5, 1, 1.25, 1.5, 1.75, 2, 4, 8, 20]
    logistic = lambda f: 1 / (1 + mpmath.exp(-f))  # noqa: E731
    value = Bernoulli().predictive(mean, covariance).log_prob(ones)
    expected = [log_integral_of(logistic, *case, points) for case in ((2, 3), (-30, 20))]
    assert value.tolist() == pytest.approx(expected, rel=1e-12)
    poisson = lambda f: mpmath.exp(7 * f - mpmath.exp(f)) / mpmath.factorial(7)  # noqa: E731
    value = Poisson().predictive(mean, covariance).log_prob(7 * ones)
    expected = [log_integral_of(poisson, *case, points) for case in ((2, 3), (-30, 20))]
    assert value.tolist() == pytest.approx(expected, rel=1e-12)
