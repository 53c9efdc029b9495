"""Logit likelihood: densities, targets, saturation, sampling."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch.distributions import Bernoulli as Reference

from lingp.likelihoods import Bernoulli, as_likelihood


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(y, output_shape):
    return Bernoulli().check_targets(torch.as_tensor(y), output_shape, torch.float64)


def test_log_prob_and_moments_are_those_of_the_distribution():
    f = 3 * tensor(7, 3)
    y = (tensor(7, 3, seed=1) > 0).double()
    likelihood, reference = as_likelihood("bernoulli"), Reference(logits=f)
    torch.testing.assert_close(likelihood.log_prob(y, f), reference.log_prob(y).sum(-1))
    torch.testing.assert_close(likelihood.conditional_mean(f), reference.mean)
    torch.testing.assert_close(likelihood.conditional_variance(f), reference.variance)


def test_distribution_function_and_intervals():
    f = tensor(4, 1)
    y = torch.arange(3.0).double()
    expected = torch.cat([torch.sigmoid(-f), torch.ones(4, 2).double()], -1)
    torch.testing.assert_close(Bernoulli().cdf_each(y, f), expected)
    mean = torch.tensor([[-10.0], [0.0], [10.0]]).double()
    lower, upper = Bernoulli().predictive(mean, torch.ones(3, 1, 1).double()).interval(0.9)
    assert lower.flatten().tolist() == [0.0, 0.0, 1.0]
    assert upper.flatten().tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("logit", [-700.0, -37.0, 0.0, 37.0, 700.0])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_no_digits_are_lost_at_saturation(logit, label):
    f, y = torch.tensor([[logit]]).double(), torch.tensor([[label]]).double()
    with mpmath.workdps(400):
        p = 1 / (1 + mpmath.exp(-logit))
        residual, variance = float(label - p), float(p * (1 - p))
        log_prob = float(mpmath.log(p if label else 1 - p))
    likelihood = Bernoulli()
    root = likelihood.curvature_root(y, f).tensors()[0]
    # exp(x / 2) has a relative error of x / 2 roundings
    assert root.item() == pytest.approx(variance**0.5, rel=1e-13)
    assert likelihood.residual(y, f).item() == pytest.approx(residual, rel=1e-14)
    assert likelihood.log_prob(y, f).item() == pytest.approx(log_prob, rel=1e-14)
    assert likelihood.conditional_variance(f).item() == pytest.approx(variance, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_saturation_are_finite(dtype):
    f = torch.tensor([[1e3, -1e3, 1e30, -1e30, 0.0]], dtype=dtype, requires_grad=True)
    for label in (0.0, 1.0, float("nan")):
        y = torch.full((1, 5), label, dtype=dtype)
        root = Bernoulli().curvature_root(y, f).tensors()[0]
        assert root.dtype == dtype
        total = root.sum() + Bernoulli().residual(y, f).sum()
        total = total + Bernoulli().log_prob(y, f.clamp(-1e6, 1e6)).sum()
        (gradient,) = torch.autograd.grad(total, f)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("y", "output_shape"),
    [
        ([0, 1, 1], ()),
        ([0.0, 1.0, 1.0], (1,)),
        ([False, True, True], (1,)),
        ([[0], [1], [1]], ()),
        ([[[0]], [[1]], [[1]]], (1, 1)),
    ],
)
def test_labels_of_every_dtype_are_the_same(y, output_shape):
    assert torch.equal(check(y, output_shape), torch.tensor([[0.0], [1.0], [1.0]]).double())


@pytest.mark.parametrize(
    ("y", "output_shape", "message"),
    [
        ([0, 2, 2], (), r"y: expected labels 0 or 1, got 2 in row 1 \(2 such values\)"),
        ([-1, 1], (), "labels 0 or 1, got -1 in row 0"),
        ([0.5, 1], (), "got 0.5"),
        ([0, 1], (2,), r"\(N,\).*\(N, 2\)"),
        ([[0, 1]], (), r"\(N, 2\).*\(N,\)"),
        ([[0, 1]], (1,), r"\(N, 2\).*\(N, 1\)"),
    ],
)
def test_wrong_targets_are_named(y, output_shape, message):
    with pytest.raises(ValueError, match=message):
        check(y, output_shape)


def test_one_label_per_datum_has_a_number_of_labels():
    assert [Bernoulli().num_labels(shape) for shape in ((), (1,), (3,))] == [2, 2, None]


def test_samples_have_the_frequencies_of_the_probabilities():
    f, count = tensor(3, 2), 20_000
    draws = Bernoulli().sample(f.expand(count, -1, -1), generator=torch.Generator().manual_seed(0))
    assert draws.dtype == torch.float64
    error = (Bernoulli().conditional_variance(f) / count).sqrt()
    assert ((draws.mean(0) - torch.sigmoid(f)).abs() / error).max() < 5
