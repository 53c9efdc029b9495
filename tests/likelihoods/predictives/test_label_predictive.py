"""Predictives of class labels: quadrature, probit, Laplace bridge, draws."""

from __future__ import annotations

import math

import pytest
import torch
from predictive_checks import (
    check_draws_agree,
    check_global_randomness_is_left_alone,
    check_rows_are_independent,
    close,
    generator,
    latents,
)

from lingp.likelihoods import Bernoulli, Categorical

METHODS = Categorical.methods
methods = pytest.mark.parametrize("method", METHODS)


def predict(mean, covariance, method=None, likelihood=None):
    likelihood = likelihood or Categorical()
    return likelihood.predictive(mean, covariance, method, num_samples=4000, generator=generator())


def one_hot(num_classes):
    classes = torch.arange(num_classes, dtype=torch.float64)
    return lambda draws: (draws.unsqueeze(-1) == classes).double().flatten(-2)


def average(mean, covariance, num_draws=400_000):
    """Softmax probabilities by many draws, and their standard error."""
    root = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(mean.shape[-1]).double())
    total, squares = 0, 0
    for seed in range(10):
        shape = (num_draws // 10, *mean.shape)
        normal = torch.randn(shape, generator=generator(seed), dtype=torch.float64)
        p = (mean + torch.einsum("ncd,snd->snc", root, normal)).softmax(-1)
        total, squares = total + p.sum(0), squares + p.square().sum(0)
    p = total / num_draws
    return p, ((squares / num_draws - p.square()) / num_draws).sqrt()


@pytest.mark.parametrize("num_classes", [3, 10])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_quasi_monte_carlo_probabilities(num_classes, scale):
    mean, covariance = latents(2, num_classes, scale=scale)
    p, error = average(2 * mean, covariance)
    predictive = predict(2 * mean, covariance)
    assert ((predictive.probs - p).abs() < 4.5 * error + 2e-3 * min(scale, 1)).all()


def test_two_classes_are_exact():
    mean, covariance = latents(4, 2, scale=5.0)
    predictive = predict(mean, covariance)
    spread = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    binary = Bernoulli().predictive((mean[:, 1:] - mean[:, :1]), spread[:, None, None])
    close(predictive.probs, binary.probs)
    close(predictive.epistemic_variance, binary.epistemic_variance.expand(-1, 2))
    close(predictive.aleatoric_variance, binary.aleatoric_variance.expand(-1, 2))
    far = predict(torch.tensor([[0.0, 40.0]]).double(), 1e-4 * torch.eye(2)[None].double())
    assert far.log_prob(torch.zeros(1, 1).double()).item() == pytest.approx(-40 + 1e-4, rel=1e-12)


@methods
@pytest.mark.parametrize("num_classes", [2, 4])
def test_a_shift_common_to_all_classes_changes_nothing(method, num_classes):
    mean, covariance = latents(4, num_classes)
    expected = predict(mean, covariance, method)
    shift = torch.tensor([3.0, -50.0, 0.2, 1e3], dtype=torch.float64)
    if method == "monte_carlo":  # whose draws see all of the covariance
        moved, rtol = predict(mean + shift[:, None], covariance, method), 1e-9
    else:
        moved, rtol = predict(mean + shift[:, None], covariance + 4.0, method), 1e-8
    close(moved.probs, expected.probs, rtol=rtol)
    close(moved.epistemic_variance, expected.epistemic_variance, rtol=rtol, atol=1e-10)


@methods
@pytest.mark.parametrize("num_classes", [2, 4])
def test_variance_is_that_of_indicators(method, num_classes):
    mean, covariance = latents(6, num_classes, scale=3.0)
    predictive = predict(3 * mean, covariance, method)
    p = predictive.probs
    close(p.sum(-1), torch.ones(6, dtype=torch.float64))
    close(predictive.variance, p * (1 - p))
    assert (predictive.epistemic_variance >= 0).all()
    assert (predictive.aleatoric_variance >= 0).all()
    y = torch.arange(6)[:, None].remainder(num_classes).double()
    close(predictive.log_prob(y), p.gather(-1, y.long()).log()[:, 0])


@methods
def test_no_uncertainty_is_the_softmax(method):
    mean, covariance = latents(4, 5)
    p = mean.softmax(-1)
    predictive = predict(mean, 1e-8 * covariance, method)
    if method == "laplace_bridge":  # a Dirichlet's shape is tied to its mean
        predictive = predict(mean, 1e-8 * torch.eye(5).double().expand(4, 5, 5), method)
        assert (predictive.epistemic_variance < 1e-6).all()
        return
    close(predictive.probs, p, rtol=1e-4)
    close(predictive.aleatoric_variance, p * (1 - p), rtol=1e-4)


def test_probit_of_two_classes_is_mackay_and_daunizeau():
    mean, covariance = latents(4, 2, scale=2.0)
    spread = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    s = (1 + math.pi / 8 * spread).sqrt()
    p = ((mean[:, 1] - mean[:, 0]) / s).sigmoid()
    predictive = predict(mean, covariance, "probit")
    close(predictive.probs[:, 1], p)
    close(predictive.epistemic_variance[:, 1], p * (1 - p) * (1 - 1 / s))


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_probit_is_close_to_the_truth(num_classes):
    mean, covariance = latents(20, num_classes, scale=1.0)
    exact, probit = predict(mean, covariance), predict(mean, covariance, "probit")
    assert (exact.probs - probit.probs).abs().max() < 0.1
    assert (exact.epistemic_variance - probit.epistemic_variance).abs().max() < 0.03


def test_probit_variance_is_the_slope_of_its_probabilities():
    mean, covariance = latents(1, 4, scale=2.0)
    probs = lambda m: predict(m, covariance, "probit").probs[0]  # noqa: E731
    slope = torch.autograd.functional.jacobian(probs, mean)[:, 0].diagonal()
    close(predict(mean, covariance, "probit").aleatoric_variance[0], slope)


def test_laplace_bridge_inverts_the_approximation_of_a_dirichlet():
    alpha = torch.tensor([[3.0, 7.0, 1.0, 0.5], [40.0, 10.0, 5.0, 300.0]]).double()
    size = alpha.shape[-1]
    mean = alpha.log() - alpha.log().mean(-1, keepdim=True)
    inverse = 1 / alpha
    covariance = torch.diag_embed(inverse) - (inverse[:, :, None] + inverse[:, None]) / size
    covariance = covariance + inverse.sum(-1)[:, None, None] / size**2
    predictive = predict(mean, covariance, "laplace_bridge")
    total = alpha.sum(-1, keepdim=True)
    p = alpha / total
    close(predictive.probs, p)
    close(predictive.epistemic_variance, p * (1 - p) / (total + 1))


@pytest.mark.parametrize("method", ["quadrature", "monte_carlo"])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_draws(method, num_classes):
    mean, covariance = latents(3, num_classes)
    predictive = predict(mean, covariance, method)
    if method == "monte_carlo":
        predictive = Categorical().predictive(
            mean, covariance, method, num_samples=400_000, generator=generator()
        )
    check_draws_agree(predictive, one_hot(num_classes), num_samples=20_000)
    assert predictive.sample(2, generator()).shape == (2, 3, 1)


@methods
@pytest.mark.parametrize("num_classes", [2, 4])
def test_rows_are_independent(method, num_classes):
    mean, covariance = latents(4, num_classes)
    y = torch.zeros(4, 1, dtype=torch.float64)
    check_rows_are_independent(lambda *args: predict(*args, method), mean, covariance, y)


@methods
@pytest.mark.parametrize("num_classes", [2, 4])
def test_singular_covariances(method, num_classes):
    mean, covariance = latents(4, num_classes, rank=1)
    for singular in (covariance, 0 * covariance, torch.ones_like(covariance)):
        predictive = predict(mean, singular, method)
        assert predictive.probs.isfinite().all()
        assert predictive.variance.isfinite().all()
    if method != "laplace_bridge":
        close(predictive.probs, mean.softmax(-1), rtol=1e-2 if method == "monte_carlo" else 1e-7)


@methods
def test_several_labels_per_datum(method):
    likelihood = Categorical(num_classes=3)
    mean, covariance = latents(4, 6)
    predictive = predict(mean, covariance, method, likelihood)
    for label, part in enumerate((slice(0, 3), slice(3, 6))):
        alone = predict(mean[:, part], covariance[:, part, part], method)
        tolerance = 0.05 if method == "monte_carlo" else 1e-10
        close(predictive.probs[:, part], alone.probs, rtol=0, atol=tolerance)
        y = torch.full((4, 2), math.nan, dtype=torch.float64)
        y[:, label] = 1.0
        log_prob = predictive.log_prob(y)
        tolerance = 0.1 if method == "monte_carlo" else 1e-10
        close(log_prob, alone.log_prob(y[:, label, None]), rtol=0, atol=tolerance)
    missing = torch.full((4, 2), math.nan, dtype=torch.float64)
    close(predictive.log_prob(missing), torch.zeros(4).double(), atol=1e-3)
    both = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)).double()
    total = torch.stack([predictive.log_prob(y.expand(4, 2)) for y in both]).logsumexp(0)
    close(total, torch.zeros(4).double(), atol=5e-3)


def test_a_missing_label_says_nothing():
    mean, covariance = latents(2, 3)
    y = torch.tensor([[math.nan], [1.0]], dtype=torch.float64)
    log_prob = predict(mean, covariance).log_prob(y)
    assert log_prob[0] == 0
    assert log_prob[1] < 0


@methods
def test_labels_have_no_interval(method):
    mean, covariance = latents(2, 3)
    with pytest.raises(TypeError, match="no order, so no interval; use probs"):
        predict(mean, covariance, method).interval(0.9)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "monte_carlo"])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_log_prob_is_differentiable(method, num_classes):
    mean, covariance = latents(2, num_classes)
    y = torch.ones(2, 1, dtype=torch.float64)

    def log_prob(mean, covariance):
        symmetric = 0.5 * (covariance + covariance.mT)
        return Categorical().predictive(mean, symmetric, method).log_prob(y)

    inputs = (mean.requires_grad_(), covariance.requires_grad_())
    assert torch.autograd.gradcheck(log_prob, inputs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "monte_carlo"])
def test_deterministic_methods_touch_no_randomness(method):
    mean, covariance = latents(3, 4)

    def everything():
        predictive = Categorical().predictive(mean, covariance, method)
        return predictive.log_prob(torch.ones(3, 1).double()), predictive.variance

    check_global_randomness_is_left_alone(everything)


@methods
@pytest.mark.parametrize("num_classes", [2, 4])
def test_single_precision(method, num_classes):
    mean, covariance = latents(4, num_classes)
    double = Categorical().predictive(mean, covariance, method, generator=generator())
    single = Categorical().predictive(
        mean.float(), covariance.float(), method, generator=generator()
    )
    assert single.probs.dtype == torch.float32
    tolerance = 0.2 if method == "monte_carlo" else 1e-4  # other draws
    close(single.probs.double(), double.probs, rtol=0, atol=tolerance)
