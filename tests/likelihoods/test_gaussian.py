"""Gaussian likelihood against torch.distributions and derivatives by torch.func."""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from lingp.likelihoods import Gaussian, as_likelihood

N, C = 5, 3
NOISES = [1e-6, 0.3, 1e6, [0.1, 0.5, 2.0], torch.tensor([1e-6, 1.0, 1e6])]


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def data():
    return tensor(N, C), tensor(N, C, seed=1)


@pytest.mark.parametrize("noise", NOISES)
def test_log_prob_is_the_normal_density(data, noise):
    y, f = data
    likelihood = Gaussian(noise)
    expected = Normal(f, likelihood.noise.sqrt()).log_prob(y).sum(-1)
    torch.testing.assert_close(likelihood.log_prob(y, f), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("noise", NOISES)
def test_residual_and_curvature_are_derivatives_of_log_prob(data, noise):
    y, f = data
    likelihood = Gaussian(noise)

    def log_prob(y, f):
        return likelihood.log_prob(y.unsqueeze(0), f.unsqueeze(0)).squeeze(0)

    residual = torch.func.vmap(torch.func.grad(log_prob, 1))(y, f)
    hessian = torch.func.vmap(torch.func.hessian(log_prob, 1))(y, f)
    root = likelihood.curvature_root(y, f)
    matrix = root.apply(torch.eye(root.rank, dtype=torch.float64).expand(N, -1, -1))
    close = torch.testing.assert_close
    close(likelihood.residual(y, f), residual, rtol=1e-12, atol=0)
    close(matrix @ matrix.mT, -hessian, rtol=1e-12, atol=0)
    whitened = likelihood.whitened_residual(y, f).unsqueeze(-1)
    close(root.apply(whitened).squeeze(-1), residual, rtol=1e-12, atol=0)


@pytest.mark.parametrize("noise", [0.3, [0.1, 0.5, 2.0]])
def test_predictive_is_the_normal_with_both_variances(data, noise):
    y, mean = data
    root = tensor(N, C, C, seed=2)
    covariance = root @ root.mT
    likelihood = Gaussian(noise)
    predictive = likelihood.predictive(mean, covariance)
    total = covariance + torch.diag_embed(likelihood.noise.expand(N, C))
    expected = MultivariateNormal(mean, total)
    close = torch.testing.assert_close
    close(predictive.mean, mean)
    close(predictive.variance, expected.variance)
    close(predictive.epistemic_variance, covariance.diagonal(dim1=1, dim2=2))
    close(predictive.aleatoric_variance, likelihood.noise.expand(N, C))
    close(predictive.log_prob(y), expected.log_prob(y))

    lower, upper = predictive.interval(0.9)
    normal = Normal(mean, expected.stddev)
    close(normal.cdf(lower), torch.full_like(mean, 0.05))
    close(normal.cdf(upper), torch.full_like(mean, 0.95))

    count = 40_000
    draws = predictive.sample(count, torch.Generator().manual_seed(0))
    again = predictive.sample(count, torch.Generator().manual_seed(0))
    assert torch.equal(draws, again)
    assert ((draws.mean(0) - mean).abs() / (expected.variance / count).sqrt()).max() < 5
    centred = draws - mean
    found = torch.einsum("snc,snd->ncd", centred, centred) / count
    variances = expected.variance
    error = ((variances.unsqueeze(-1) * variances.unsqueeze(-2) + total.square()) / count).sqrt()
    assert ((found - total).abs() / error).max() < 5


@pytest.mark.parametrize("noise", [0.3, [0.1, 0.5, 2.0]])
def test_missing_targets_leave_the_marginal_of_the_others(data, noise):
    y, mean = data
    root = tensor(N, C, C, seed=2)
    covariance = root @ root.mT
    y[1, 0] = y[2, 1:] = y[3] = torch.nan
    likelihood = Gaussian(noise)
    total = covariance + torch.diag_embed(likelihood.noise.expand(N, C))
    expected = []
    for row, m, cov in zip(y, mean, total, strict=True):
        index = (~row.isnan()).nonzero().squeeze(1)
        block = MultivariateNormal(m[index], cov[index][:, index]) if len(index) else None
        expected.append(block.log_prob(row[index]) if block else torch.zeros(()).double())
    log_prob = likelihood.predictive(mean, covariance).log_prob(y)
    torch.testing.assert_close(log_prob, torch.stack(expected))
    assert log_prob[3] == 0.0


@pytest.mark.parametrize("noise", [1e-12, 1e-11])
def test_rounding_of_the_covariance_does_not_drown_the_noise(noise):
    # 1e4 v vᵀ less a few roundings: the sum with the noise has no Cholesky factor
    v = torch.tensor([[1.0], [2.0]]).double()
    covariance = (1e4 * v @ v.mT - 3e-11 * torch.eye(2).double()).unsqueeze(0)
    y = torch.tensor([[3.0, 6.0]]).double()
    likelihood = Gaussian(noise)
    predictive = likelihood.predictive(torch.zeros(1, 2).double(), covariance)
    # log N(y; 0, 1e4 v vᵀ + noise) by the determinant and inverse lemmas, y = 3 v
    along = 5e4 + likelihood.noise
    expected = -0.5 * (45 / along + (along * likelihood.noise).log() + 2 * math.log(2 * math.pi))
    found = predictive.log_prob(y).sum()
    # rounding turns v by 1e-15: 3e-9 standard deviations of the noise
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
    gradients = [torch.autograd.grad(value, likelihood.raw_noise) for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-7)


def test_a_vanishing_variance_is_not_negative():
    covariance = torch.full((1, 1, 1), -1e-18, dtype=torch.float64)
    predictive = Gaussian(0.1).predictive(torch.zeros(1, 1, dtype=torch.float64), covariance)
    assert predictive.epistemic_variance.item() == 0.0


def test_log_prob_is_differentiable_in_the_noise(data):
    y, f = data
    likelihood = Gaussian([0.1, 0.5, 2.0])
    (gradient,) = torch.autograd.grad(likelihood.log_prob(y, f).sum(), likelihood.raw_noise)
    # d/d log s of -½ (r²/s + log s)
    expected = 0.5 * ((y - f).square() / likelihood.noise - 1).sum(0)
    torch.testing.assert_close(gradient, expected.detach())


def test_noise_can_be_set_constrained_and_given_a_prior():
    likelihood = Gaussian(0.3)
    likelihood.noise = 0.7
    assert likelihood.noise.item() == pytest.approx(0.7, rel=1e-14)
    likelihood.register_prior("noise_prior", gpytorch.priors.GammaPrior(2.0, 1.0), "noise")
    assert len(list(likelihood.named_priors())) == 1
    bounded = Gaussian(0.3, noise_constraint=gpytorch.constraints.GreaterThan(1e-4))
    assert bounded.noise.item() == pytest.approx(0.3)
    with pytest.raises(ValueError, match="noise"):
        Gaussian(1e-6, noise_constraint=gpytorch.constraints.Interval(1e-4, 1.0))
    with pytest.raises(ValueError, match="noise"):
        likelihood.noise = -1.0


@pytest.mark.parametrize("noise", [0.0, -0.1, float("nan"), float("inf"), [0.1, -0.1]])
def test_noise_must_be_finite_and_positive(noise):
    with pytest.raises(ValueError, match="noise"):
        Gaussian(noise)


def test_wrong_noise_is_named():
    with pytest.raises(TypeError, match="noise"):
        Gaussian("small")
    with pytest.raises(ValueError, match=r"noise.*\(2, 2\)"):
        Gaussian(torch.ones(2, 2))


@pytest.mark.parametrize(
    ("target_shape", "output_shape"),
    [((5,), ()), ((5,), (1,)), ((5, 1), (1,)), ((5, 1), ()), ((5, 3), (3,)), ((5, 2, 3), (2, 3))],
)
def test_targets_of_the_outputs_shape_are_flattened(target_shape, output_shape):
    y = torch.ones(target_shape)
    flat = Gaussian().check_targets(y, output_shape, torch.float64)
    assert flat.shape == (5, y[0].numel())
    assert flat.dtype == torch.float64


@pytest.mark.parametrize(
    ("target_shape", "output_shape"),
    [
        ((5, 1), (3,)),
        ((5,), (3,)),
        ((5, 3), (1,)),
        ((5, 3), ()),
        ((5, 6), (2, 3)),
        ((5, 3), (1, 3)),
    ],
)
def test_targets_are_never_broadcast(target_shape, output_shape):
    with pytest.raises(ValueError, match=r"y: has shape \(N, ?\d?.*network's output asks for"):
        Gaussian().check_targets(torch.ones(target_shape), output_shape, torch.float64)


def test_targets_and_noise_must_fit():
    with pytest.raises(ValueError, match=r"noise: has 2 values.*3 outputs"):
        Gaussian([0.1, 0.2]).check_targets(torch.ones(5, 3), (3,), torch.float64)
    with pytest.raises(TypeError, match="real"):
        Gaussian().check_targets(torch.ones(5, dtype=torch.complex64), (), torch.float64)
    with pytest.raises(ValueError, match="single number"):
        Gaussian().check_targets(torch.tensor(1.0), (), torch.float64)


def test_as_likelihood():
    likelihood = Gaussian(0.1)
    assert as_likelihood(likelihood) is likelihood
    assert as_likelihood("gaussian").noise.item() == 1.0
    with pytest.raises(ValueError, match=r"'normal' is not known.*'gaussian'"):
        as_likelihood("normal")
    with pytest.raises(TypeError, match=r"likelihood.*float"):
        as_likelihood(0.1)
