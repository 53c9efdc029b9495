"""Correlated Gaussian noise against torch.distributions; derivatives are in the table."""

from __future__ import annotations

import gpytorch
import mpmath
import pytest
import torch
from torch.distributions import MultivariateNormal

from lingp.likelihoods import CorrelatedGaussian, DenseRoot, Gaussian, SharedRoot

N, C = 5, 3
close = torch.testing.assert_close
COVARIANCE = torch.tensor(
    [[1.0, 0.6, -0.3], [0.6, 0.5, 0.1], [-0.3, 0.1, 2.0]], dtype=torch.float64
)


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def data():
    return tensor(N, C), tensor(N, C, seed=1)


def with_missing(y):
    y = y.clone()
    y[1, 0] = y[2, 1:] = y[3] = torch.nan
    return y


def marginal(y, mean, covariance):
    """log N of the observed targets of one datum, by taking its block."""
    index = (~y.isnan()).nonzero().squeeze(1)
    if len(index) == 0:
        return torch.zeros((), dtype=torch.float64)
    block = covariance[index][:, index]
    return MultivariateNormal(mean[index], block).log_prob(y[index])


def test_log_prob_is_the_normal_density(data):
    y, f = data
    likelihood = CorrelatedGaussian(COVARIANCE)
    expected = MultivariateNormal(f, COVARIANCE).log_prob(y)
    close(likelihood.log_prob(y, f), expected, rtol=1e-13, atol=1e-13)
    root, white = likelihood.curvature_root(y, f), likelihood.whitened_residual(y, f)
    assert isinstance(root, SharedRoot)
    close(root.apply(white.unsqueeze(-1)).squeeze(-1), likelihood.residual(y, f))
    close(root.values @ root.values.mT, torch.linalg.inv(COVARIANCE), rtol=1e-12, atol=1e-12)


def test_diagonal_covariance_is_independent_noise(data):
    y, f = data
    noise = [0.1, 0.5, 2.0]
    correlated = CorrelatedGaussian(torch.diag(torch.tensor(noise, dtype=torch.float64)))
    plain = Gaussian(noise)
    for y in (data[0], with_missing(data[0])):
        close(correlated.log_prob(y, f), plain.log_prob(y, f))
        close(correlated.residual(y, f), plain.residual(y, f))


def test_missing_targets_leave_the_marginal_of_the_others(data):
    y, f = with_missing(data[0]), data[1]
    likelihood = CorrelatedGaussian(COVARIANCE)
    expected = torch.stack([marginal(*row, COVARIANCE) for row in zip(y, f, strict=True)])
    close(likelihood.log_prob(y, f), expected, rtol=1e-13, atol=1e-13)
    root, white = likelihood.curvature_root(y, f), likelihood.whitened_residual(y, f)
    assert isinstance(root, DenseRoot)
    close(root.apply(white.unsqueeze(-1)).squeeze(-1), likelihood.residual(y, f))
    # -½ |z|² is the quadratic part: what evidence takes from z
    constant = likelihood.log_prob(y, y.nan_to_num())
    close(likelihood.log_prob(y, f), constant - 0.5 * white.square().sum(-1))
    for row, values in zip(y, root.values, strict=True):
        index = (~row.isnan()).nonzero().squeeze(1)
        found = values @ values.mT
        inverse = torch.zeros(C, C, dtype=torch.float64)
        inverse[index.unsqueeze(1), index] = torch.linalg.inv(COVARIANCE[index][:, index])
        close(found, inverse, rtol=1e-12, atol=1e-12)


def test_deviations_of_twelve_orders_against_fifty_digits():
    sigmas = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
    covariance = sigmas.unsqueeze(1) * (0.9 + 0.1 * torch.eye(3).double()) * sigmas
    likelihood = CorrelatedGaussian(covariance)
    root = likelihood.curvature_root(torch.zeros(1, 3), torch.zeros(1, 3).double()).values
    with mpmath.workdps(50):
        exact = mpmath.matrix(covariance.tolist()) ** -1
    entries = [[float(v) for v in exact[i, :]] for i in range(3)]
    expected = torch.tensor(entries, dtype=torch.float64)
    # in units of the deviations: condition 28 of the correlations
    found = sigmas.unsqueeze(1) * (root @ root.mT) * sigmas
    close(found, sigmas.unsqueeze(1) * expected * sigmas, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("missing", [False, True])
def test_predictive_is_the_normal_with_both_covariances(data, missing):
    y, mean = data
    y = with_missing(y) if missing else y
    root = tensor(N, C, C, seed=2)
    covariance = root @ root.mT
    predictive = CorrelatedGaussian(COVARIANCE).predictive(mean, covariance)
    total = covariance + COVARIANCE
    rows = zip(y, mean, total, strict=True)
    close(predictive.log_prob(y), torch.stack([marginal(*row) for row in rows]))
    close(predictive.aleatoric_variance, COVARIANCE.diagonal().expand(N, C))
    close(predictive.variance, total.diagonal(dim1=1, dim2=2))
    close(sum(predictive.interval(0.9)), 2 * mean)


def test_draws_have_the_covariances(data):
    count, (_, f) = 40_000, data
    likelihood = CorrelatedGaussian(COVARIANCE)
    generator = torch.Generator().manual_seed(0)
    conditional = likelihood.sample(f.expand(count, -1, -1), generator=generator)
    covariance = 0.5 * torch.eye(C).double().expand(N, C, C)
    marginal = likelihood.predictive(f, covariance).sample(count, generator)
    for draws, total in ((conditional, COVARIANCE), (marginal, COVARIANCE + covariance[0])):
        centred = draws - f
        found = torch.einsum("snc,snd->ncd", centred, centred) / count
        variances = total.diagonal()
        error = ((variances.unsqueeze(1) * variances + total.square()) / count).sqrt()
        assert ((found - total).abs() / error).max() < 5


def test_evidence_terms_are_differentiable_in_the_covariance(data):
    y, f = with_missing(data[0]), data[1]
    likelihood = CorrelatedGaussian(COVARIANCE)

    def evaluate(*_):
        predictive = likelihood.predictive(f, torch.eye(C, dtype=torch.float64).expand(N, C, C))
        return (
            likelihood.log_prob(y, f),
            likelihood.whitened_residual(y, f),
            likelihood.curvature_root(y, f).values,
            predictive.log_prob(y),
        )

    assert torch.autograd.gradcheck(evaluate, list(likelihood.parameters()))


def test_covariance_can_be_set_and_given_a_prior():
    likelihood = CorrelatedGaussian([[1.0, 0.2], [0.2, 0.5]])
    likelihood.covariance = [[2.0, -0.9], [-0.9, 0.6]]
    expected = torch.tensor([[2.0, -0.9], [-0.9, 0.6]], dtype=torch.float64)
    close(likelihood.covariance, expected, rtol=1e-14, atol=1e-14)
    box = gpytorch.priors.SmoothedBoxPrior(0.1, 10.0)
    likelihood.register_prior(
        "covariance_prior", gpytorch.priors.LKJCovariancePrior(2, 1.0, box), "covariance"
    )
    assert len(list(likelihood.named_priors())) == 1
    assert "2 outputs" in repr(likelihood)
    with pytest.raises(ValueError, match="covariance: expected 2 x 2"):
        likelihood.covariance = torch.eye(3)


@pytest.mark.parametrize(
    ("covariance", "error", "message"),
    [
        ("large", TypeError, "covariance: expected a matrix"),
        (2.0, ValueError, "square matrix"),
        ([[1.0, 0.0]], ValueError, "square matrix"),
        ([[1.0, 0.5], [0.0, 1.0]], ValueError, "symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], ValueError, "positive definite.*-1"),
        ([[1.0, float("nan")], [0.0, 1.0]], ValueError, "finite"),
    ],
)
def test_wrong_covariances_are_named(covariance, error, message):
    with pytest.raises(error, match=message):
        CorrelatedGaussian(covariance)


def test_one_output_is_gaussian_noise():
    y, f = tensor(N, 1), tensor(N, 1, seed=1)
    likelihood = CorrelatedGaussian([[0.4]])
    y[2] = torch.nan
    close(likelihood.log_prob(y, f), Gaussian(0.4).log_prob(y, f))
    assert [p.numel() for p in likelihood.parameters() if p.requires_grad] == [1]


def test_targets_and_covariance_must_fit():
    likelihood = CorrelatedGaussian(COVARIANCE)
    with pytest.raises(ValueError, match=r"covariance: is for 3 outputs.*2"):
        likelihood.check_targets(torch.ones(5, 2), (2,), torch.float64)
    assert likelihood.check_targets(torch.ones(5, 3), (3,), torch.float64).shape == (5, 3)


def test_float32_outputs_stay_float32(data):
    y, f = (v.float() for v in data)
    likelihood = CorrelatedGaussian(COVARIANCE)
    for targets in (y, with_missing(y)):
        assert likelihood.log_prob(targets, f).dtype == torch.float32
        assert likelihood.residual(targets, f).dtype == torch.float32
        assert likelihood.curvature_root(targets, f).tensors()[0].dtype == torch.float32
        assert likelihood.sample(f).dtype == torch.float32
