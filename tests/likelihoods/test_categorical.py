"""Softmax likelihood: densities, targets, curvature at saturation, sampling."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch.distributions import Categorical as Reference

from lingp.likelihoods import Bernoulli, Categorical, as_likelihood

NAN = float("nan")


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(likelihood, y, output_shape):
    return likelihood.check_targets(torch.as_tensor(y), output_shape, torch.float64)


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_log_prob_and_moments_are_those_of_the_distribution(num_classes):
    f = 3 * tensor(7, num_classes)
    y = torch.arange(7) % num_classes
    likelihood = Categorical()
    reference = Reference(logits=f)
    targets = check(likelihood, y, (num_classes,))
    torch.testing.assert_close(likelihood.log_prob(targets, f), reference.log_prob(y))
    torch.testing.assert_close(likelihood.conditional_mean(f), reference.probs)
    expected = reference.probs * (1 - reference.probs)
    torch.testing.assert_close(likelihood.conditional_variance(f), expected)


@pytest.mark.parametrize("logits", [[40.0, 0.0, -3.0], [-3.0, 40.0, 0.0], [0.0, -50.0, 300.0]])
def test_no_digits_of_a_saturated_curvature_are_lost(logits):
    """Λ_ij to rounding of √(Λ_ii Λ_jj), also where p_k = 1 in doubles but Λ_kk = 1e-18."""
    with mpmath.workdps(200):
        weights = [mpmath.exp(v) for v in logits]
        p = [w / mpmath.fsum(weights) for w in weights]
        curvature = [[float(p[i] * ((i == j) - p[j])) for j in range(3)] for i in range(3)]
        residual = [float((k == 1) - p[k]) for k in range(3)]
    f = torch.tensor([logits], dtype=torch.float64)
    y = torch.tensor([[1.0]], dtype=torch.float64)
    root = Categorical().curvature_root(y, f).tensors()[0][0]
    expected = torch.tensor(curvature, dtype=torch.float64)
    scale = expected.diagonal().sqrt()
    error = (root @ root.mT - expected).abs() / torch.outer(scale, scale)
    assert error.max() < 1e-13
    expected = torch.tensor(residual, dtype=torch.float64)
    torch.testing.assert_close(Categorical().residual(y, f)[0], expected, rtol=1e-13, atol=0)


def test_root_has_one_column_less_than_classes_and_none_for_a_common_shift():
    f = tensor(5, 4)
    y = torch.zeros(5, 1, dtype=torch.float64)
    root = Categorical().curvature_root(y, f).tensors()[0]
    assert root.shape == (5, 4, 3)
    torch.testing.assert_close(root.sum(1), torch.zeros(5, 3, dtype=torch.float64))


def test_two_classes_are_a_bernoulli_of_the_difference():
    f = 4 * tensor(6, 2)
    y = (torch.arange(6) % 2).double().unsqueeze(-1)
    categorical, bernoulli = Categorical(), Bernoulli()
    logit = f[:, 1:] - f[:, :1]
    torch.testing.assert_close(categorical.log_prob(y, f), bernoulli.log_prob(y, logit))
    residual = bernoulli.residual(y, logit)
    torch.testing.assert_close(categorical.residual(y, f), torch.cat([-residual, residual], -1))
    squared = bernoulli.curvature_root(y, logit).tensors()[0].square()
    root = categorical.curvature_root(y, f).tensors()[0]
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(root @ root.mT, squared.unsqueeze(-1) * signs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e30])
def test_gradients_at_saturation_are_finite(dtype, size):
    f = size * torch.tensor([[1, -1, 0], [-1, -1, 1], [1, 1, 1], [0, 0, 0]], dtype=dtype)
    f.requires_grad_()
    y = torch.tensor([[0.0], [0.0], [1.0], [NAN]], dtype=dtype)
    likelihood = Categorical()
    root = likelihood.curvature_root(y, f).tensors()[0]
    assert root.dtype == dtype
    total = root.sum() + likelihood.residual(y, f).sum() + likelihood.log_prob(y, f).sum()
    (gradient,) = torch.autograd.grad(total, f)
    assert torch.isfinite(total)
    assert torch.isfinite(gradient).all()


def test_a_sequence_is_a_product_of_its_labels():
    likelihood, single = Categorical(), Categorical()
    f = tensor(5, 4 * 3)
    y = check(likelihood, torch.arange(20).reshape(5, 4) % 3, (4, 3))
    assert likelihood.num_classes == 3
    each = f.reshape(5, 4, 3)
    expected = sum(single.log_prob(y[:, [k]], each[:, k]) for k in range(4))
    torch.testing.assert_close(likelihood.log_prob(y, f), expected)
    roots = [single.curvature_root(y[:, [k]], each[:, k]).tensors()[0] for k in range(4)]
    root = likelihood.curvature_root(y, f)
    matrix = root.apply(torch.eye(root.rank).double().expand(5, -1, -1))
    assert matrix.shape == (5, 12, 8)
    for n in range(5):
        torch.testing.assert_close(matrix[n], torch.block_diag(*(r[n] for r in roots)))
    assert likelihood.target_shape((4, 3)) == (4,)
    assert likelihood.moment_shape((4, 3)) == (4, 3)
    expected = each.softmax(-1).flatten(1)
    torch.testing.assert_close(likelihood.conditional_mean(f), expected)


@pytest.mark.parametrize(
    "y",
    [
        torch.tensor([0, 1, 1]),
        torch.tensor([0, 1, 1], dtype=torch.uint8),
        torch.tensor([0.0, 1.0, 1.0]),
        torch.tensor([[0], [1], [1]]),
        torch.tensor([False, True, True]),
    ],
)
def test_labels_of_every_dtype_are_the_same(y):
    labels = check(Categorical(), y, (2,))
    assert torch.equal(labels, torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64))


def test_missing_labels_are_kept():
    labels = check(Categorical(), [0.0, NAN, 2.0], (3,))
    assert labels.isnan().flatten().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("y", "output_shape", "error", "message"),
    [
        ([0, 1], (), ValueError, "use Bernoulli"),
        ([0, 1], (1,), ValueError, r"one output per class.*\(N, 1\); use Bernoulli"),
        ([[0, 1], [1, 0]], (2,), ValueError, r"y: has shape \(N, 2\).*labels 0..1.*argmax"),
        ([[0.2, 0.8], [0.5, 0.5]], (2,), ValueError, r"give labels"),
        ([0, 1, 3], (3,), ValueError, r"y: expected class labels 0..2.*got 3 in row 2"),
        ([0, -1, 1], (3,), ValueError, r"got -1 in row 1 \(1 such values\)"),
        ([0.0, 0.5], (3,), ValueError, r"whole numbers, got 0.5 in row 1"),
        ([True, False], (3,), TypeError, r"labels 0..2, got two-valued torch.bool"),
        ([[0, 1, 2]], (2, 4), ValueError, r"y: has shape \(N, 3\).*asks for \(N, 2\)"),
        ([0, 1], (2, 4), ValueError, r"y: has shape \(N,\).*asks for \(N, 2\)"),
        (1, (3,), ValueError, "single number"),
        ([1j, 0], (3,), TypeError, "real"),
    ],
)
def test_wrong_targets_are_named(y, output_shape, error, message):
    with pytest.raises(error, match=message):
        check(Categorical(), y, output_shape)


def test_one_label_per_datum_has_a_number_of_labels():
    assert Categorical().num_labels((3,)) == 3
    assert Categorical().num_labels((4, 3)) is None


def test_number_of_classes():
    assert as_likelihood("categorical").num_classes is None
    with pytest.raises(ValueError, match="num_classes: expected at least 2, got 1; use Bernoulli"):
        Categorical(1)
    with pytest.raises(ValueError, match=r"num_classes: this Categorical has 3 classes.*\(N, 4\)"):
        check(Categorical(3), [0, 1], (4,))
    likelihood = Categorical()
    check(likelihood, [0, 1], (4,))
    check(likelihood, [0, 1], (2,))  # one label per datum binds it to nothing
    assert repr(Categorical(3)) == "Categorical(num_classes=3)"


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_samples_have_the_frequencies_of_the_probabilities(shape):
    likelihood = Categorical(shape[-1])
    f = tensor(3, torch.Size(shape).numel())
    count = 20_000
    draws = likelihood.sample(f.expand(count, -1, -1), generator=torch.Generator().manual_seed(0))
    assert draws.dtype == torch.float64
    assert draws.shape == (count, 3, torch.Size(shape[:-1]).numel())
    classes = torch.arange(shape[-1], dtype=torch.float64)
    found = (draws.unsqueeze(-1) == classes).double().mean(0).flatten(1)
    error = (likelihood.conditional_variance(f) / count).sqrt()
    assert ((found - likelihood.conditional_mean(f)).abs() / error).max() < 5


def test_predictive_is_of_labels():
    likelihood = Categorical()
    mean, root = tensor(4, 3), tensor(4, 3, 3, seed=1)
    covariance = root @ root.mT
    for method in likelihood.methods:
        predictive, again = (
            likelihood.predictive(
                mean, covariance, method, generator=torch.Generator().manual_seed(0)
            )
            for _ in range(2)
        )
        assert torch.equal(predictive.mean, again.mean)
        one = torch.ones(4, dtype=torch.float64)
        torch.testing.assert_close(predictive.mean.sum(-1), one)
        expected = predictive.mean * (1 - predictive.mean)
        torch.testing.assert_close(predictive.variance, expected)
        log_prob = torch.stack(
            [predictive.log_prob(torch.full((4, 1), float(k))) for k in range(3)]
        )
        torch.testing.assert_close(log_prob.exp().mT, predictive.mean, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="method: Categorical predicts by 'quadrature'"):
        likelihood.predictive(mean, covariance, "exact")
