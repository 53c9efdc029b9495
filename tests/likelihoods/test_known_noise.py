"""Known noise variances per target, with and without noise beyond them."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from lingp.likelihoods import Gaussian, KnownNoiseGaussian

N, C = 5, 2
close = torch.testing.assert_close


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def data():
    """Values, known variances, outputs."""
    return tensor(N, C), tensor(N, C, seed=1).exp(), tensor(N, C, seed=2)


@pytest.mark.parametrize("noise", [None, 0.3, [0.1, 2.0]])
def test_log_prob_is_the_normal_density(data, noise):
    values, known, f = data
    likelihood = KnownNoiseGaussian(noise)
    y = likelihood.check_targets(torch.stack([values, known], -1), (C,), torch.float64)
    total = known + torch.tensor(noise or 0.0, dtype=torch.float64)
    expected = Normal(f, total.sqrt()).log_prob(values).sum(-1)
    close(likelihood.log_prob(y, f), expected, rtol=1e-13, atol=1e-13)
    root, white = likelihood.curvature_root(y, f), likelihood.whitened_residual(y, f)
    close(white, (values - f) / total.sqrt(), rtol=1e-13, atol=0)
    close(root.apply(white.unsqueeze(-1)).squeeze(-1), likelihood.residual(y, f))


def test_equal_known_noise_is_gaussian_noise(data):
    values, _, f = data
    y = torch.stack([values, torch.full_like(values, 0.4)], -1)
    known, plain = KnownNoiseGaussian(), Gaussian(0.4)
    close(known.log_prob(y, f), plain.log_prob(values, f))
    close(known.residual(y, f), plain.residual(values, f))


@pytest.mark.parametrize("noise", [None, 0.3])
def test_predictive_takes_the_noise_of_the_rows_to_predict(data, noise):
    values, known, mean = data
    root = tensor(N, C, C, seed=3)
    covariance = root @ root.mT
    likelihood = KnownNoiseGaussian(noise)
    total = known + (noise or 0.0)
    predictive = likelihood.at(known).predictive(mean, covariance)
    close(predictive.aleatoric_variance, total)
    close(predictive.epistemic_variance, covariance.diagonal(dim1=1, dim2=2))
    expected = MultivariateNormal(mean, covariance + torch.diag_embed(total))
    close(predictive.variance, expected.variance)
    y = torch.stack([values, known], -1)
    close(predictive.log_prob(y), expected.log_prob(values))
    close(likelihood.predictive(mean, covariance).log_prob(y), expected.log_prob(values))
    lower, upper = predictive.interval(0.5)
    close(Normal(mean, expected.stddev).cdf(upper), torch.full_like(mean, 0.75))
    close(lower + upper, 2 * mean)

    count = 40_000
    draws = predictive.sample(count, torch.Generator().manual_seed(0))
    error = expected.variance * (2 / count) ** 0.5  # of a variance
    assert ((draws.var(0) - expected.variance).abs() / error).max() < 5


def test_without_known_noise_predictions_have_the_shared_noise_only(data):
    _, _, mean = data
    covariance = torch.eye(C).double().expand(N, C, C)
    assert KnownNoiseGaussian().predictive(mean, covariance).aleatoric_variance.max() == 0
    shared = KnownNoiseGaussian([0.1, 2.0]).predictive(mean, covariance)
    close(shared.aleatoric_variance, torch.tensor([0.1, 2.0]).double().expand(N, C))


def test_a_singular_predictive_without_noise_can_be_sampled():
    column = torch.tensor([[1.0], [2.0]]).double()
    covariance = (column @ column.mT).unsqueeze(0)
    mean = torch.zeros(1, 2).double()
    draws = (
        KnownNoiseGaussian()
        .predictive(mean, covariance)
        .sample(10_000, torch.Generator().manual_seed(0))
    )
    close(draws[..., 1], 2 * draws[..., 0], rtol=1e-7, atol=1e-7)
    assert draws[..., 0].var().item() == pytest.approx(1.0, abs=5 * (2 / 10_000) ** 0.5)
    nothing = KnownNoiseGaussian().predictive(mean, 0 * covariance)
    assert (nothing.sample(3) == 0).all()


def test_missing_targets_are_left_out_of_the_predictive(data):
    values, known, mean = data
    root = tensor(N, C, C, seed=3)
    covariance = root @ root.mT
    values[1, 0] = torch.nan
    values[2] = torch.nan
    likelihood = KnownNoiseGaussian(0.2)
    y = likelihood.check_targets(torch.stack([values, known], -1), (C,), torch.float64)
    log_prob = likelihood.predictive(mean, covariance).log_prob(y)
    variance = covariance[1, 1, 1] + known[1, 1] + 0.2
    expected = Normal(mean[1, 1], variance.sqrt()).log_prob(values[1, 1])
    close(log_prob[1], expected)
    assert log_prob[2] == 0.0


def test_the_shared_noise_is_learnable(data):
    values, known, f = data
    likelihood = KnownNoiseGaussian(0.3)
    y = torch.stack([values, known], -1)
    (gradient,) = torch.autograd.grad(likelihood.log_prob(y, f).sum(), likelihood.raw_noise)
    total = known + 0.3
    expected = 0.5 * 0.3 * ((values - f).square() / total.square() - 1 / total).sum()
    close(gradient, expected)
    likelihood.noise = 0.6
    assert likelihood.noise.item() == pytest.approx(0.6, rel=1e-14)
    assert "0.6" in repr(likelihood)
    assert not list(KnownNoiseGaussian().parameters())
    with pytest.raises(ValueError, match="noise: this likelihood has none"):
        KnownNoiseGaussian().noise = 0.1


@pytest.mark.parametrize(
    ("output_shape", "given"), [((), (2,)), ((1,), (2,)), ((1,), (1, 2)), ((2,), (2, 2))]
)
def test_targets_have_a_last_axis_of_two(output_shape, given):
    likelihood = KnownNoiseGaussian()
    y = likelihood.check_targets(torch.ones(5, *given), output_shape, torch.float64)
    assert y.shape == (5, max(1, sum(output_shape)), 2)
    assert likelihood.target_shape(output_shape) == (*output_shape, 2)
    assert likelihood.moment_shape(output_shape) == output_shape


@pytest.mark.parametrize(("output_shape", "given"), [((), ()), ((2,), (2,)), ((1,), (3,))])
def test_targets_without_noise_are_refused(output_shape, given):
    with pytest.raises(ValueError, match="value, known noise variance"):
        KnownNoiseGaussian().check_targets(torch.ones(5, *given), output_shape, torch.float64)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_known_noise_must_be_positive(bad):
    y = torch.tensor([[1.0, 0.5], [2.0, bad]])
    with pytest.raises(ValueError, match=r"y\[\.\.\., 1\].*row 1"):
        KnownNoiseGaussian().check_targets(y, (), torch.float64)
    if bad == 0.0:  # there is more noise than is known
        KnownNoiseGaussian(0.1).check_targets(y, (), torch.float64)


def test_wrong_arguments_are_named(data):
    _, known, mean = data
    covariance = torch.eye(C).double().expand(N, C, C)
    likelihood = KnownNoiseGaussian([0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match=r"noise: has 3 values.*2 outputs"):
        likelihood.check_targets(torch.ones(5, 2, 2), (2,), torch.float64)
    with pytest.raises(ValueError, match=r"known: has shape \(4, 2\).*have shape \(5, 2\)"):
        KnownNoiseGaussian().at(known[:4]).predictive(mean, covariance)
    with pytest.raises(ValueError, match=r"known: expected noise variances >= 0"):
        KnownNoiseGaussian().at(-known)
    with pytest.raises(ValueError, match="known: has shape"):
        KnownNoiseGaussian().at(known[:, :1]).predictive(mean, covariance)
