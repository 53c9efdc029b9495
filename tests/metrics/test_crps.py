"""CRPS: against numerical integration of its definition, draws, and what must hold of it."""

import math

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from scipy import integrate, stats
from scipy.special import ndtr

from lingp import LinearizedGP
from lingp.likelihoods import (
    Bernoulli,
    Binomial,
    Categorical,
    CorrelatedGaussian,
    Gaussian,
    Heteroscedastic,
    KnownNoiseGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
)
from lingp.metrics import crps, crps_gaussian, crps_mixture, crps_samples
from lingp.metrics.crps_counts import crps_of_counts
from lingp.metrics.crps_nodes import crps_of_mixture
from lingp.metrics.crps_quadrature import crps_of_reals
from lingp.models import Prediction
from lingp.models.layout import TargetLayout


def by_integration(cdf, y, lower=-60.0, upper=60.0):
    """∫ (F(x) - 1[x >= y])² dx by QUADPACK, split at y."""
    below = integrate.quad(lambda x: cdf(x) ** 2, lower, y, limit=400, epsabs=1e-11)[0]
    return below + integrate.quad(lambda x: (1 - cdf(x)) ** 2, y, upper, limit=400, epsabs=1e-11)[0]


def predicted(likelihood, mean, covariance, output_shape=(1,), known=None):
    likelihood = likelihood.at(known)
    layout = TargetLayout(likelihood, output_shape, len(mean), mean.dtype, mean.device)
    predictive = likelihood.predictive(mean, covariance)
    return Prediction(predictive, layout, "network", mean, covariance)


def normal_rows(num_rows, size, seed=0, dtype=torch.float64):
    source = torch.Generator().manual_seed(seed)
    mean = torch.randn(num_rows, size, generator=source, dtype=torch.float64)
    root = 0.6 * torch.randn(num_rows, size, size, generator=source, dtype=torch.float64)
    return mean.to(dtype), (root @ root.mT).to(dtype)


@pytest.mark.parametrize("y", [-3.0, 0.4, 2.0])
def test_normal_is_the_integral(y):
    expected = by_integration(stats.norm(0.5, 1.7).cdf, y)
    assert crps_gaussian([0.5], [1.7], [y]) == pytest.approx(expected, rel=1e-10)


def test_normal_without_spread_has_the_absolute_error():
    assert crps_gaussian([1.0, 1.0], [0.0, 0.0], [3.0, 1.0], reduction="none").tolist() == [2, 0]


@pytest.mark.parametrize("y", [-3.0, 0.4, 5.0])
def test_mixture_is_the_integral(y):
    means, stddevs, weights = [-1.0, 0.5, 4.0], [0.3, 1.0, 2.0], [0.5, 0.2, 0.3]

    def cdf(x):
        return np.dot(weights, stats.norm(means, stddevs).cdf(x))

    found = crps_mixture([means], [stddevs], [y], weights=weights)
    assert found == pytest.approx(by_integration(cdf, y), rel=1e-9)


def test_mixture_of_equals_is_the_normal_and_of_points_that_of_draws():
    source = np.random.default_rng(0)
    y, points = source.normal(size=5), source.normal(size=(7, 5))
    same = crps_mixture(np.full((5, 4), 0.3), np.full((5, 4), 1.2), y, reduction="none")
    normal = crps_gaussian(np.full(5, 0.3), np.full(5, 1.2), y, reduction="none")
    np.testing.assert_allclose(same, normal, rtol=1e-12)
    # the plain form for draws counts each with itself, the fair one doesn't
    plain = crps_mixture(points.T, np.zeros((5, 7)), y, reduction="none")
    within = np.abs(points[:, None] - points[None]).sum((0, 1)) / 2
    fair = crps_samples(points, y, reduction="none")
    np.testing.assert_allclose(fair, plain + within / 49 - within / 42, rtol=1e-12)


def test_draws_are_unbiased_even_few():
    source = np.random.default_rng(0)
    each = crps_samples(source.normal(size=(3, 20000)), np.full(20000, 0.7), reduction="none")
    error = each.std() / math.sqrt(20000)
    assert abs(each.mean() - crps_gaussian([0.0], [1.0], [0.7])) < 4 * error


def test_heteroscedastic_is_the_integral_of_the_mixture():
    likelihood = Heteroscedastic()
    mean, covariance = normal_rows(6, 2)
    y = torch.tensor([[-3.0], [0.0], [0.3], [1.0], [8.0], [float("nan")]], dtype=torch.float64)
    found = crps(predicted(likelihood, mean, covariance, (2,)), y, reduction="none")
    assert np.isnan(found[5]).all()
    z, weight = np.polynomial.hermite_e.hermegauss(160)
    weight = weight / weight.sum()
    for row in range(5):
        (m1, m2), s = mean[row].tolist(), covariance[row].numpy()
        f2 = torch.as_tensor(m2 + math.sqrt(s[1, 1]) * z)
        g = likelihood.precision(f2).detach().numpy()
        centre = (m1 + s[0, 1] / math.sqrt(s[1, 1]) * z) / g
        spread = np.sqrt(1 / g + (s[0, 0] - s[0, 1] ** 2 / s[1, 1]) / g**2)
        expected = crps_mixture([centre], [spread], [float(y[row])], weights=weight)
        # Gauss-Hermite with 160 nodes is the coarser of the two
        assert found[row].item() == pytest.approx(expected, rel=1e-5)


def test_two_ways_for_a_mixture_agree(monkeypatch):
    mean, covariance = normal_rows(2, 2, seed=1)
    y = torch.tensor([[0.5], [-4.0]], dtype=torch.float64)
    predictive = Heteroscedastic().predictive(mean, covariance)
    # not by way of the distribution function
    monkeypatch.setattr("lingp.metrics.crps_nodes.crps_of_reals", None)
    with torch.no_grad():
        found = crps_of_mixture(predictive, y)
        expected = crps_of_reals(predictive, y)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_means_that_move_by_more_than_the_noise_from_node_to_node():
    # f₁ follows f₂ all but exactly
    mean = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    covariance = torch.tensor([[[400.0, 20.0], [20.0, 1.0 + 1e-7]]], dtype=torch.float64)
    likelihood = Heteroscedastic()
    found = crps(predicted(likelihood, mean, covariance, (2,)), [[0.5]])
    z = np.linspace(-7, 7, 1401)
    weight = stats.norm.pdf(z) * (z[1] - z[0])
    g = likelihood.precision(torch.as_tensor(math.sqrt(1 + 1e-7) * z)).detach().numpy()
    centre = 20 / math.sqrt(1 + 1e-7) * z / g
    spread = np.sqrt(1 / g + (400 - 400 / (1 + 1e-7)) / g**2)
    expected = 0.0
    for end, sign in ((-1, 1), (1, -1)):
        # from y outwards; far tails count little and are drawn out
        x = 0.5 + end * np.sinh(np.linspace(0, 9, 2500))
        below = ndtr((x[:, None] - centre) / spread) @ weight
        part = below if sign == 1 else 1 - below
        expected += abs(integrate.trapezoid(part**2, x))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("freedom", [2.1, 5.0, 300.0])
def test_student_t_without_uncertainty_is_the_integral(freedom):
    likelihood = StudentT(degrees_of_freedom=freedom, scale=0.8)
    mean = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    prediction = predicted(likelihood, mean, torch.zeros(2, 1, 1, dtype=torch.float64))
    found = crps(prediction, torch.tensor([0.3, 30.0]).double(), reduction="none")
    for row, y in enumerate([0.3, 30.0]):
        law = stats.t(freedom, loc=float(mean[row]), scale=0.8)
        expected = by_integration(law.cdf, y, -math.inf, math.inf)
        assert found.flat[row] == pytest.approx(expected, rel=1e-6)


def test_two_ways_for_student_t_agree(monkeypatch):
    mean, covariance = normal_rows(3, 2)
    likelihood = StudentT(degrees_of_freedom=[2.5, 8.0], scale=[0.3, 2.0])
    y = torch.tensor([[0.5, -9.0], [0.1, 0.0], [7.0, 1.0]], dtype=torch.float64)
    predictive = likelihood.predictive(mean, covariance)
    monkeypatch.setattr("lingp.metrics.crps_nodes.crps_of_reals", None)
    with torch.no_grad():
        found = crps_of_mixture(predictive, y)
        expected = crps_of_reals(predictive, y)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_student_t_with_hardly_a_mean():
    constraint = GreaterThan(0.5, transform=torch.exp, inv_transform=torch.log)
    likelihood = StudentT(1.0, degrees_of_freedom_constraint=constraint)
    prediction = predicted(likelihood, torch.zeros(1, 1).double(), torch.zeros(1, 1, 1).double())
    expected = by_integration(stats.cauchy.cdf, 0.4, -math.inf, math.inf)
    # its tails count down to a probability of 1e-7
    assert crps(prediction, [0.4]) == pytest.approx(expected, rel=1e-6)


def of_counts(pmf):
    """Σ (F - step)² from probabilities of 0, 1, 2, ..., for each possible y."""
    below = np.cumsum(pmf)
    return lambda y: float(((below - (np.arange(len(pmf)) >= y)) ** 2).sum())


def test_counts_without_uncertainty_are_the_sum():
    mean = torch.tensor([[1.0], [5.5]], dtype=torch.float64)
    y = torch.tensor([[0.0], [300.0]], dtype=torch.float64)
    found = crps(predicted(Poisson(), mean, torch.zeros(2, 1, 1).double()), y, reduction="none")
    for row in range(2):
        law = stats.poisson(math.exp(mean[row, 0])).pmf(np.arange(800))
        # from 64 on it is an integral
        assert found[row].item() == pytest.approx(of_counts(law)(y[row].item()), rel=1e-6)


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(dispersion=0.3)])
def test_large_counts_by_an_integral_are_their_sum(likelihood, monkeypatch):
    mean, y = torch.tensor([[4.0], [4.5]]).double(), torch.tensor([[63.0], [300.0]]).double()
    predictive = likelihood.predictive(mean, 0.1 * torch.ones(2, 1, 1).double())
    with torch.no_grad():
        found = crps_of_counts(predictive, y)
        monkeypatch.setattr("lingp.metrics.crps_counts._ONE_BY_ONE", 10**6)
        expected = crps_of_counts(predictive, y)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_known_trials_of_a_binomial():
    trials = torch.tensor([[10.0], [200.0]], dtype=torch.float64)
    mean = torch.tensor([[0.5], [5.0]], dtype=torch.float64)
    prediction = predicted(Binomial(), mean, torch.zeros(2, 1, 1).double(), known=trials)
    y = torch.tensor([[7.0], [199.0]], dtype=torch.float64)
    found = crps(prediction, y, reduction="none")
    for row in range(2):
        number = int(trials[row])
        law = stats.binom(number, float(mean[row].sigmoid())).pmf(np.arange(number + 1))
        assert found[row].item() == pytest.approx(of_counts(law)(y[row].item()), rel=1e-6)


def test_two_ordered_labels_have_half_the_brier_score():
    mean, covariance = normal_rows(5, 1)
    prediction = predicted(Bernoulli(), mean, covariance)
    y = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]).double()
    p = prediction.probs[:, 1]
    assert crps(prediction, y) == pytest.approx(float((p - y).square().mean()), rel=1e-6)


def test_ordered_labels_are_the_sum():
    likelihood = Ordinal(4)
    mean, covariance = normal_rows(3, 1)
    prediction = predicted(likelihood, mean, covariance)
    y = torch.tensor([0, 3, 2])
    found = crps(prediction, y, reduction="none").reshape(-1)
    for row in range(3):
        law = of_counts(prediction.probs[row].detach().numpy())
        assert found[row] == pytest.approx(law(int(y[row])), rel=1e-6)


def test_gaussian_noise_of_every_kind_by_integration():
    mean, covariance = normal_rows(2, 2)
    y = torch.tensor([[0.1, float("nan")], [3.0, -1.0]], dtype=torch.float64)
    known = torch.tensor([[0.1, 0.2], [0.3, 0.4]]).double()
    cases = [
        (Gaussian([0.5, 0.8]), [[0.5, 0.8]] * 2, None),
        (CorrelatedGaussian([[0.5, 0.2], [0.2, 0.8]]), [[0.5, 0.8]] * 2, None),
        (KnownNoiseGaussian(noise=0.25), (0.25 + known).tolist(), known),
    ]
    for likelihood, variances, beside in cases:
        prediction = predicted(likelihood, mean, covariance, (2,), beside)
        found = crps(prediction, y, reduction="none")
        assert np.isnan(found[0, 1])
        for row, column in [(0, 0), (1, 0), (1, 1)]:
            variance = float(covariance[row, column, column]) + variances[row][column]
            law = stats.norm(float(mean[row, column]), math.sqrt(variance))
            expected = by_integration(law.cdf, float(y[row, column]))
            assert found[row, column] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("wrong", [(0.3, 1.0), (0.0, 1.3), (0.0, 0.7)])
def test_truth_scores_best(wrong):
    y = np.random.default_rng(0).normal(size=20000)
    true = crps_gaussian(np.zeros_like(y), np.ones_like(y), y, reduction="none")
    other = crps_gaussian(np.full_like(y, wrong[0]), np.full_like(y, wrong[1]), y, reduction="none")
    gain = other - true
    assert gain.mean() > 4 * gain.std() / math.sqrt(len(y))


def test_units_and_shifts():
    source = np.random.default_rng(0)
    m, s, y = source.normal(size=(3, 6))
    one = crps_gaussian(m, np.abs(s), y)
    assert crps_gaussian(7 - 3 * m, 3 * np.abs(s), 7 - 3 * y) == pytest.approx(3 * one, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_a_fitted_gp_close_to_draws(dtype):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    X = torch.linspace(-1, 1, 12, dtype=dtype).unsqueeze(1)
    y = torch.sin(3 * X)
    gp = LinearizedGP(net, Heteroscedastic(), prior=1.0, dtype=dtype).fit(X, y)
    prediction = gp.predict(X)
    found = crps(prediction, y, reduction="none")
    assert found.shape == (12, 1)
    assert isinstance(crps(prediction, y), float)
    source = torch.Generator().manual_seed(0)
    draws = [
        crps(prediction, y, num_samples=500, generator=source, reduction="none") for _ in range(20)
    ]
    error = np.std(draws, axis=0, ddof=1) / math.sqrt(20)
    assert (np.abs(np.mean(draws, axis=0) - found) < 5 * error).all()


def test_refusals():
    mean, covariance = normal_rows(2, 3)
    labels = predicted(Categorical(), mean, covariance, (3,))
    with pytest.raises(TypeError, match="prediction: is of class labels"):
        crps(labels, torch.tensor([0, 1]))
    with pytest.raises(TypeError, match="prediction: expected what `predict` gives, got ndarray"):
        crps(np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match=r"stddev: has shape \(2,\), but y has \(3,\)"):
        crps_gaussian(np.zeros(3), np.ones(2), np.zeros(3))
    with pytest.raises(ValueError, match="stddev: expected finite numbers >= 0, got -1"):
        crps_gaussian([0.0], [-1.0], [0.0])
    with pytest.raises(ValueError, match="weights: expected a sum of 1"):
        crps_mixture([[0.0, 1.0]], [[1.0, 1.0]], [0.0], weights=[0.5, 0.6])
    with pytest.raises(ValueError, match="samples: expected at least 2 draws, got 1"):
        crps_samples(np.zeros((1, 3)), np.zeros(3))
    with pytest.raises(ValueError, match='reduction: expected "mean" or "none"'):
        crps_gaussian([0.0], [1.0], [0.0], reduction="sum")
    with pytest.raises(ValueError, match="y: all targets are missing"):
        crps_gaussian([0.0], [1.0], [math.nan])
    wide = predicted(Binomial(), mean[:, :1], covariance[:, :1, :1], known=torch.full((2, 1), 1e6))
    with pytest.raises(ValueError, match=r"prediction: row . may be any of .* num_samples=1000"):
        crps(wide, torch.tensor([[3.0], [4.0]]))
    drawn = Poisson().predictive(mean[:, :1], covariance[:, :1, :1], "monte_carlo")
    layout = TargetLayout(Poisson(), (1,), 2, mean.dtype, mean.device)
    with pytest.raises(TypeError, match="prediction: AffineMixture has no distribution function"):
        crps(Prediction(drawn, layout, "network", mean, covariance), torch.tensor([1.0, 2.0]))
