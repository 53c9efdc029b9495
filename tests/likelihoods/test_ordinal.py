"""Cumulative logit likelihood: densities, cutpoints, targets, tails, sampling."""

from __future__ import annotations

import mpmath
import pytest
import torch

from lingp.likelihoods import Ordinal

CUTPOINTS = [-1.5, 0.2, 0.9]


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(likelihood, y, output_shape):
    return likelihood.check_targets(torch.as_tensor(y), output_shape, torch.float64)


def test_log_prob_is_the_difference_of_the_cumulative_probabilities():
    likelihood, f = Ordinal(cutpoints=CUTPOINTS), tensor(9, 2)
    cumulative = torch.sigmoid(likelihood.cutpoints - f.unsqueeze(-1))  # (N, C, K-1)
    padded = torch.nn.functional.pad(cumulative, (1, 0))
    padded = torch.cat([padded, torch.ones_like(padded[..., :1])], -1)
    probs = padded.diff(dim=-1)
    torch.testing.assert_close(likelihood.conditional_mean(f), probs.flatten(1))
    torch.testing.assert_close(likelihood.conditional_variance(f), (probs * (1 - probs)).flatten(1))
    for label in range(4):
        y = torch.full((9, 2), float(label), dtype=torch.float64)
        expected = probs[..., label].log().sum(-1)
        torch.testing.assert_close(likelihood.log_prob(y, f), expected)
    ones = torch.ones(9, 2, dtype=torch.float64)
    torch.testing.assert_close(likelihood.conditional_mean(f).reshape(9, 2, 4).sum(-1), ones)


def test_distribution_function_and_intervals():
    likelihood, f = Ordinal(cutpoints=CUTPOINTS), tensor(9, 1)
    y = torch.arange(6.0).double()
    probs = likelihood.conditional_mean(f)
    expected = torch.cat([probs.cumsum(-1), torch.ones(9, 2).double()], -1)
    torch.testing.assert_close(likelihood.cdf_each(y, f), expected)
    mean = torch.tensor([[-10.0], [0.0], [10.0]]).double()
    lower, upper = likelihood.predictive(mean, torch.ones(3, 1, 1).double()).interval(0.9)
    assert lower.flatten().tolist() == [0.0, 0.0, 3.0]
    assert upper.flatten().tolist() == [0.0, 3.0, 3.0]


def definition(label, f, cutpoints):
    """log p, its derivative and minus its second derivative at 400 digits."""
    bounds = [-mpmath.inf, *(mpmath.mpf(b) for b in cutpoints), mpmath.inf]

    def cdf(x):
        return mpmath.mpf(x == mpmath.inf) if mpmath.isinf(x) else 1 / (1 + mpmath.exp(-x))

    def density(x):
        return mpmath.mpf(0) if mpmath.isinf(x) else cdf(x) * cdf(-x)

    def slope(x):
        return mpmath.mpf(0) if mpmath.isinf(x) else density(x) * (1 - 2 * cdf(x))

    upper, lower = bounds[label + 1] - f, bounds[label] - f
    p = cdf(upper) - cdf(lower)
    first = -(density(upper) - density(lower)) / p
    second = (slope(upper) - slope(lower)) / p - first**2
    return float(mpmath.log(p)), float(first), float(-second)


@pytest.mark.parametrize("f", [-300.0, -40.0, 0.3, 25.0, 300.0])
@pytest.mark.parametrize("label", [0, 1, 2, 3])
@pytest.mark.parametrize("gap", [1e-9, 1.0, 200.0])
def test_derivatives_hold_in_the_tails(f, label, gap):
    likelihood = Ordinal(cutpoints=[0.0, gap, gap + 1.0])
    first, increments = likelihood.first_cutpoint.item(), likelihood.increments.tolist()
    y, latent = torch.tensor([[float(label)]]).double(), torch.tensor([[f]], dtype=torch.float64)
    with mpmath.workdps(400):
        cutpoints = [mpmath.mpf(first)]
        for step in increments:
            cutpoints.append(cutpoints[-1] + mpmath.mpf(step))
        log_prob, residual, curvature = definition(label, mpmath.mpf(f), cutpoints)
    root = likelihood.curvature_root(y, latent).tensors()[0].item()
    # a bound of 300 carries an error of half its last digit, 3e-14, into exponents
    assert likelihood.log_prob(y, latent).item() == pytest.approx(log_prob, rel=1e-13, abs=1e-15)
    assert likelihood.residual(y, latent).item() == pytest.approx(residual, rel=1e-12, abs=1e-15)
    assert root**2 == pytest.approx(curvature, rel=1e-12)


def test_log_prob_is_concave():
    f = torch.linspace(-60, 60, 401, dtype=torch.float64).unsqueeze(-1)
    likelihood = Ordinal(cutpoints=CUTPOINTS)
    for label in range(4):
        y = torch.full_like(f, float(label))
        assert (likelihood.curvature_root(y, f).tensors()[0] > 0).all()
        assert (likelihood.residual(y, f).diff(dim=0) <= 1e-16).all()


def test_moving_cutpoints_and_outputs_together_changes_nothing():
    f, y = tensor(6, 1), torch.arange(6).double().unsqueeze(-1) % 4
    likelihood, moved = Ordinal(cutpoints=CUTPOINTS), Ordinal(cutpoints=CUTPOINTS)
    moved.initialize(first_cutpoint=moved.first_cutpoint + 0.7)
    torch.testing.assert_close(moved.log_prob(y, f + 0.7), likelihood.log_prob(y, f))


def test_cutpoints_start_at_equal_probabilities_and_can_be_set():
    likelihood = Ordinal(5)
    uniform = torch.full((1, 5), 0.2, dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    torch.testing.assert_close(likelihood.conditional_mean(zero), uniform)
    assert likelihood.num_classes == 5
    likelihood.cutpoints = [-2.0, -1.0, 0.5, 3.0]
    expected = torch.tensor([-2.0, -1.0, 0.5, 3.0], dtype=torch.float64)
    torch.testing.assert_close(likelihood.cutpoints, expected)
    torch.testing.assert_close(likelihood.increments, expected.diff())
    likelihood.increments = [1.0, 1.0, 1.0]
    torch.testing.assert_close(likelihood.cutpoints.diff(), torch.ones(3).double())
    assert {name for name, _ in likelihood.named_parameters()} == {
        "first_cutpoint",
        "raw_increments",
    }
    assert "cutpoints=[-1.5, 0.2, 0.9]" in repr(Ordinal(cutpoints=CUTPOINTS))
    with pytest.raises(ValueError, match="cutpoints: 5 classes have 4 cutpoints, got 2"):
        likelihood.cutpoints = [0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_saturation_are_finite(dtype):
    likelihood = Ordinal(cutpoints=[-1e3, 0.0, 1e-6])
    f = torch.tensor([[1e3, -1e3, 1e6, -1e6, 0.0]], dtype=dtype, requires_grad=True)
    for label in (0.0, 1.0, 2.0, 3.0, float("nan")):
        y = torch.full((1, 5), label, dtype=dtype)
        root = likelihood.curvature_root(y, f).tensors()[0]
        assert root.dtype == dtype
        total = root.sum() + likelihood.residual(y, f).sum() + likelihood.log_prob(y, f).sum()
        for gradient in torch.autograd.grad(total, [f, *likelihood.parameters()]):
            assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("output_shape", "moments"),
    [((), (4,)), ((1,), (4,)), ((3,), (3, 4)), ((2, 3), (2, 3, 4)), ((1, 1), (1, 1, 4))],
)
def test_every_output_has_its_own_label(output_shape, moments):
    likelihood = Ordinal(cutpoints=CUTPOINTS)
    assert likelihood.target_shape(output_shape) == output_shape
    assert likelihood.moment_shape(output_shape) == moments
    y = torch.ones(5, *output_shape)
    flat = likelihood.check_targets(y, output_shape, torch.float64)
    f = torch.zeros(5, torch.Size(output_shape).numel(), dtype=torch.float64)
    assert flat.shape == f.shape
    assert likelihood.conditional_mean(f).reshape(5, *moments).sum().item() == pytest.approx(
        f.numel()
    )


@pytest.mark.parametrize(
    ("y", "output_shape", "error", "message"),
    [
        ([0, 4], (), ValueError, r"y: expected class labels 0..3.*got 4 in row 1"),
        ([0, -1], (), ValueError, "got -1 in row 1"),
        ([0.0, 1.5], (), ValueError, "whole numbers, got 1.5"),
        ([True, False], (), TypeError, "two-valued torch.bool"),
        ([[0, 0, 1, 0]], (), ValueError, r"\(N, 4\), one number per class.*argmax"),
        ([[0, 0, 1, 0]], (1,), ValueError, r"one number per class"),
        ([[[0, 0, 1, 0]]], (1,), ValueError, r"one number per class"),
        ([0, 1], (2,), ValueError, r"\(N,\).*\(N, 2\)"),
    ],
)
def test_wrong_targets_are_named(y, output_shape, error, message):
    with pytest.raises(error, match=message):
        check(Ordinal(4), y, output_shape)


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match="num_classes, cutpoints: give one of them"):
        Ordinal()
    with pytest.raises(TypeError, match="give one of them"):
        Ordinal(4, cutpoints=CUTPOINTS)
    with pytest.raises(ValueError, match="num_classes: expected at least 3, got 2; use Bernoulli"):
        Ordinal(2)
    with pytest.raises(ValueError, match="cutpoints: expected at least two"):
        Ordinal(cutpoints=[0.0])
    for wrong in ([0.0, 0.0], [1.0, 0.0], [0.0, float("inf")], [float("nan"), 0.0]):
        with pytest.raises(ValueError, match="cutpoints: expected finite increasing"):
            Ordinal(cutpoints=wrong)


def test_one_label_per_datum_has_a_number_of_labels():
    assert [Ordinal(4).num_labels(shape) for shape in ((), (1,), (3,))] == [4, 4, None]


def test_samples_have_the_frequencies_of_the_probabilities():
    likelihood, f, count = Ordinal(cutpoints=CUTPOINTS), tensor(3, 2), 20_000
    draws = likelihood.sample(f.expand(count, -1, -1), generator=torch.Generator().manual_seed(0))
    assert draws.dtype == torch.float64
    assert draws.shape == (count, 3, 2)
    found = (draws.unsqueeze(-1) == torch.arange(4.0)).double().mean(0).flatten(1)
    error = (likelihood.conditional_variance(f) / count).sqrt()
    assert ((found - likelihood.conditional_mean(f)).abs() / error).max() < 5
