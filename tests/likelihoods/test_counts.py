"""Poisson, binomial and negative binomial: densities, draws, limits, checks of targets."""

from __future__ import annotations

import mpmath
import pytest
import scipy.special
import scipy.stats
import torch

from lingp.likelihoods import Binomial, NegativeBinomial, Poisson, as_likelihood
from lingp.likelihoods.counts import log_factorial_excess, stirling_error


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


F = column(-4.0, -0.5, 0.0, 1.3, 2.0, 5.0)
COUNTS = column(0.0, 1.0, 2.0, 3.0, 17.0, 160.0)


def test_poisson_is_scipys():
    expected = scipy.stats.poisson.logpmf(COUNTS, F.exp())
    torch.testing.assert_close(
        Poisson().log_prob(COUNTS, F), torch.tensor(expected)[:, 0], rtol=1e-12, atol=1e-12
    )


def test_exposure_multiplies_the_rate():
    exposure = column(0.1, 1.0, 2.0, 5.0, 1e3, 1e-3)
    likelihood = Poisson(exposure=True)
    y = likelihood.check_targets(torch.cat([COUNTS, exposure], -1), (), torch.float64)
    expected = scipy.stats.poisson.logpmf(COUNTS, exposure * F.exp())
    torch.testing.assert_close(
        likelihood.log_prob(y, F), torch.tensor(expected)[:, 0], rtol=1e-11, atol=1e-11
    )
    torch.testing.assert_close(likelihood.at(exposure).conditional_mean(F), exposure * F.exp())
    torch.testing.assert_close(likelihood.conditional_mean(F), F.exp())


def test_binomial_is_scipys():
    trials = column(3.0, 1.0, 9.0, 3.0, 40.0, 161.0)
    likelihood = Binomial()
    y = likelihood.check_targets(torch.cat([COUNTS, trials], -1), (1,), torch.float64)
    expected = scipy.stats.binom.logpmf(COUNTS, trials, F.sigmoid())
    torch.testing.assert_close(
        likelihood.log_prob(y, F), torch.tensor(expected)[:, 0], rtol=1e-11, atol=1e-11
    )
    torch.testing.assert_close(likelihood.at(trials).conditional_mean(F), trials * F.sigmoid())
    fixed = Binomial(161)
    torch.testing.assert_close(fixed.log_prob(COUNTS[-1:], F[-1:]), likelihood.log_prob(y, F)[-1:])


@pytest.mark.parametrize("dispersion", [1e-3, 0.5, 40.0])
def test_negative_binomial_is_scipys(dispersion):
    likelihood, mean = NegativeBinomial(dispersion), F.exp()
    probability = 1 / (1 + dispersion * mean)
    expected = scipy.stats.nbinom.logpmf(COUNTS, 1 / dispersion, probability)
    torch.testing.assert_close(
        likelihood.log_prob(COUNTS, F), torch.tensor(expected)[:, 0], rtol=1e-9, atol=1e-9
    )
    variance = scipy.stats.nbinom.var(1 / dispersion, probability)
    torch.testing.assert_close(likelihood.conditional_variance(F), torch.tensor(variance))


@pytest.mark.parametrize(("dispersion", "count"), [(1e-9, 1e6), (0.3, 1e6), (1e5, 3.0), (2.0, 0.0)])
def test_negative_binomial_keeps_its_digits(dispersion, count):
    """Against 50 digits, where differences of log-gammas of 1e6 and 1e9 leave seven."""
    f = 13.0 if count > 10 else 1.0
    actual = NegativeBinomial(dispersion).log_prob(column(count), column(f)).item()
    with mpmath.workdps(50):
        # the parameter is stored as its logarithm
        s = 1 / mpmath.mpf(NegativeBinomial(dispersion).dispersion.item())
        mean = mpmath.exp(f)
        expected = (
            mpmath.loggamma(count + s)
            - mpmath.loggamma(s)
            - mpmath.loggamma(count + 1)
            + count * mpmath.log(mean / (s + mean))
            + s * mpmath.log(s / (s + mean))
        )
    assert actual == pytest.approx(float(expected), rel=1e-12, abs=1e-12)


def test_small_dispersion_is_poisson():
    actual = NegativeBinomial(1e-14).log_prob(COUNTS, F)
    torch.testing.assert_close(actual, Poisson().log_prob(COUNTS, F), rtol=1e-10, atol=1e-10)


def test_gradient_in_dispersion_against_finite_differences_of_mpmath():
    likelihood = NegativeBinomial(0.4)
    y, f = column(7.0), column(0.9)
    likelihood.log_prob(y, f).sum().backward()

    def log_prob(log_dispersion):
        s, mean = mpmath.exp(-log_dispersion), mpmath.exp(mpmath.mpf("0.9"))
        return (
            mpmath.loggamma(7 + s)
            - mpmath.loggamma(s)
            + 7 * mpmath.log(mean / (s + mean))
            + s * mpmath.log(s / (s + mean))
        )

    expected = mpmath.diff(log_prob, mpmath.log(mpmath.mpf("0.4")))
    assert likelihood.raw_dispersion.grad.item() == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize("z", [1e-8, 0.3, 1.0, 7.0, 15.99, 16.0, 40.0, 1e6, 1e12])
def test_stirling_error_against_fifty_digits(z):
    with mpmath.workdps(50):
        exact = mpmath.mpf(z)
        expected = mpmath.loggamma(exact) - (exact - 0.5) * mpmath.log(exact) + exact
        expected -= mpmath.log(2 * mpmath.pi) / 2
    actual = stirling_error(torch.tensor(z, dtype=torch.float64)).item()
    # below 16 the direct form subtracts terms of up to 30
    assert actual == pytest.approx(float(expected), rel=1e-14, abs=1e-14 if z < 16 else 0)


def test_log_factorials():
    y = torch.tensor([0.0, 1.0, 2.0, 20.0]).double()
    expected = torch.lgamma(y + 1) - torch.special.xlogy(y, y) + y
    torch.testing.assert_close(log_factorial_excess(y), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("likelihood", "known"),
    [(Poisson(), None), (Binomial(), 1e6), (NegativeBinomial(0.1), None)],
    ids=["poisson", "binomial", "negative-binomial"],
)
def test_float32_keeps_large_counts(likelihood, known):
    y, f = torch.tensor([[1e6]]), torch.tensor([[13.8]])
    if known is not None:
        y, f = torch.tensor([[[3e5, known]]]), torch.tensor([[-0.85]])
    exact = likelihood.log_prob(y.double(), f.double()).item()
    # f itself is rounded by 5e-7, which the residual multiplies
    allowed = 1e-6 * likelihood.residual(y, f).abs().item() + 1e-3 + 1e-6 * abs(exact)
    if known is not None:
        allowed += 0.1  # two sums of 6e5 with rounding 6e-8 each
    assert abs(likelihood.log_prob(y, f).item() - exact) < allowed
    assert likelihood.log_prob(y, f).dtype == torch.float32


@pytest.mark.parametrize("f", [-1e3, -100.0, 40.0, 88.0, 1e3])
@pytest.mark.parametrize("likelihood", [Poisson(), Binomial(3), NegativeBinomial(0.1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_and_draws_are_finite_everywhere(likelihood, f, dtype):
    f = torch.full((2, 1), f, dtype=dtype)
    draws = likelihood.sample(f, generator=torch.Generator().manual_seed(0))
    for values in (likelihood.conditional_mean(f), likelihood.conditional_variance(f), draws):
        assert torch.isfinite(values).all()
        assert (values >= 0).all()
        assert values.dtype == dtype


def test_the_continuation_above_forty_is_smooth_and_concave():
    f = torch.linspace(39, 41, 2001, dtype=torch.float64).unsqueeze(-1)
    likelihood, y = Poisson(), torch.zeros(2001, 1).double()
    residual = likelihood.residual(y, f)[:, 0]
    assert (residual.diff() < 0).all()
    step = f[1, 0] - f[0, 0]
    curvature = likelihood.curvature_root(y, f).values.square()[1:, 0]
    torch.testing.assert_close(-residual.diff() / step, curvature, rtol=2e-3, atol=0.0)


@pytest.mark.parametrize(
    ("likelihood", "f", "known"),
    [
        (Poisson(), 1.5, None),
        (Poisson(), 25.0, None),
        (Poisson(exposure=True), -1.0, 8.0),
        (Binomial(), 0.7, 20.0),
        (Binomial(1_000_000), 0.7, None),
        (NegativeBinomial(0.5), 2.0, None),
        (NegativeBinomial(50.0), 2.0, None),
        (NegativeBinomial(1e-8), 2.0, None),
    ],
    ids=str,
)
def test_draws_have_the_moments(likelihood, f, known):
    num = 40_000
    f = torch.full((num, 1), f).double()
    known = None if known is None else torch.full((num, 1), known).double()
    likelihood = likelihood.at(known)
    draws = likelihood.sample(f, generator=torch.Generator().manual_seed(0))
    mean = likelihood.conditional_mean(f)[0].item()
    variance = likelihood.conditional_variance(f)[0].item()
    assert (draws == draws.round()).all()
    assert abs(draws.mean().item() - mean) < 4 * (variance / num) ** 0.5
    fourth = (draws - draws.mean()).pow(4).mean().item()
    assert abs(draws.var().item() - variance) < 4 * (fourth / num) ** 0.5


def test_names():
    assert isinstance(as_likelihood("poisson"), Poisson)
    assert isinstance(as_likelihood("binomial"), Binomial)
    assert isinstance(as_likelihood("negative_binomial"), NegativeBinomial)


@pytest.mark.parametrize(
    ("likelihood", "y", "shape", "message"),
    [
        (Poisson(), [1.0, -1.0], (), "counts 0, 1, 2, .*got -1 in row 1"),
        (Poisson(), [0.5], (), "counts"),
        (Poisson(), [float("inf")], (), "counts"),
        (Poisson(), [[1.0, 2.0]], (), "shape"),
        (Poisson(exposure=True), [1.0], (), r"\(count, exposure\)"),
        (Poisson(exposure=True), [[1.0, 0.0]], (), r"y\[\.\.\., 1\].*positive exposure.*got 0"),
        (Poisson(exposure=True), [[1.0, float("nan")]], (), "exposure.*got nan"),
        (Binomial(3), [4.0], (), "0, 1, ..., 3"),
        (Binomial(), [4.0], (), r"\(successes, trials\)"),
        (Binomial(), [[4.0, 3.0]], (), "no more successes than trials"),
        (Binomial(), [[1.0, 1.5]], (), "trials.*got 1.5"),
        (NegativeBinomial([0.1, 0.2]), [1.0], (), "dispersion: has 2 values.*1 outputs"),
        (NegativeBinomial(), [-1.0], (), "counts"),
    ],
)
def test_bad_targets(likelihood, y, shape, message):
    with pytest.raises(ValueError, match=message):
        likelihood.check_targets(torch.tensor(y), shape, torch.float64)


@pytest.mark.parametrize(
    ("likelihood", "known", "message"),
    [
        (Poisson(exposure=True), 0.0, "known: expected a finite positive exposure.*got 0"),
        (NegativeBinomial(exposure=True), -1.0, "known: expected a finite positive exposure"),
        (Binomial(), 1.5, "known: expected a number of trials.*got 1.5"),
    ],
)
def test_bad_known_quantities_at_prediction(likelihood, known, message):
    with pytest.raises(ValueError, match=message):
        likelihood.at(torch.full((2, 1), known).double())


@pytest.mark.parametrize("total_count", [0, -1, 2.5, True, "3"])
def test_bad_total_count(total_count):
    with pytest.raises(ValueError, match="total_count"):
        Binomial(total_count)


def test_bad_dispersion():
    with pytest.raises(ValueError, match="dispersion"):
        NegativeBinomial(-1.0)


def test_integer_targets_and_either_shape_of_one_output():
    pairs = torch.tensor([[3, 5], [0, 0]])
    likelihood = Binomial()
    flat = likelihood.check_targets(pairs, (), torch.float32)
    assert flat.shape == (2, 1, 2)
    assert flat.dtype == torch.float32
    assert torch.equal(likelihood.check_targets(pairs.unsqueeze(1), (1,), torch.float32), flat)
    assert likelihood.log_prob(flat, torch.zeros(2, 1))[1] == 0.0


def test_what_stands_beside_a_missing_count_is_never_used():
    nan = float("nan")
    pairs = torch.tensor([[nan, 0.0], [nan, -3.0], [nan, nan], [2.0, 1.5]]).double()
    likelihood = Poisson(exposure=True)
    y = likelihood.check_targets(pairs, (), torch.float64)
    f = torch.zeros(4, 1).double().requires_grad_()
    log_prob = likelihood.log_prob(y, f)
    (gradient,) = torch.autograd.grad(log_prob.sum(), f)
    assert (log_prob[:3] == 0).all()
    assert (gradient[:3] == 0).all()
    assert torch.isfinite(gradient).all()


def test_reprs_say_what_was_chosen():
    assert "exposure=True" in repr(Poisson(exposure=True))
    assert "total_count=4" in repr(Binomial(4))
    assert "dispersion=0.5" in repr(NegativeBinomial(0.5))
