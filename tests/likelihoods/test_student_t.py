"""Student-t noise against scipy and mpmath; derivatives are in the table."""

from __future__ import annotations

import math

import gpytorch
import mpmath
import pytest
import torch
from scipy.stats import kstest
from scipy.stats import t as student

from lingp.likelihoods import StudentT, as_likelihood

close = torch.testing.assert_close


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_density(y, freedom, scale):
    with mpmath.workdps(50):
        freedom, scale, half = mpmath.mpf(freedom), mpmath.mpf(scale), mpmath.mpf(1) / 2
        constant = mpmath.loggamma((freedom + 1) * half) - mpmath.loggamma(freedom * half)
        constant -= mpmath.log(mpmath.pi * freedom) * half + mpmath.log(scale)
        z = mpmath.mpf(y) / scale
        return float(constant - (freedom + 1) * half * mpmath.log1p(z * z / freedom))


@pytest.mark.parametrize("freedom", [2.1, 4.0, 99.0, 101.0, 1e4, 1e8])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_log_prob_against_fifty_digits(freedom, scale):
    y = scale * torch.tensor([[0.0], [1e-9], [0.3], [1.0], [5.0], [1e12]], dtype=torch.float64)
    likelihood = StudentT(freedom, scale)
    found = likelihood.log_prob(y, torch.zeros_like(y))
    freedom, scale = likelihood.degrees_of_freedom.item(), likelihood.scale.item()
    expected = [log_density(v, freedom, scale) for v in y.flatten().tolist()]
    # log Γ(50) = 145 and ε 145 = 3e-14 is lost in the difference of log Γs at most; relative: the
    # rounding of z enters multiplied by ν/2 · z²/ν, which is what log p itself has
    close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=6e-14)


def test_normaliser_is_differentiable_across_the_switch_to_its_series():
    for freedom in (99.9, 100.0, 100.1, 1e5):
        likelihood = StudentT(freedom)
        log_prob = likelihood.log_prob(*torch.zeros(2, 1, 1).double())
        (gradient,) = torch.autograd.grad(log_prob, likelihood.raw_degrees_of_freedom)
        with mpmath.workdps(50):
            nu = mpmath.mpf(likelihood.degrees_of_freedom.item())
            expected = (mpmath.digamma((nu + 1) / 2) - mpmath.digamma(nu / 2) - 1 / nu) / 2
        # digamma(50) = 4, of which ε is lost, and raw is log(ν - 2)
        assert gradient.item() == pytest.approx(float(expected * (nu - 2)), abs=1e-13, rel=1e-9)


def test_many_degrees_of_freedom_are_gaussian():
    y, f = tensor(5, 2), tensor(5, 2, seed=1)
    likelihood = StudentT(1e12, 0.5)
    expected = torch.distributions.Normal(f, 0.5).log_prob(y).sum(-1)
    close(likelihood.log_prob(y, f), expected, rtol=1e-10, atol=1e-10)
    close(likelihood.curvature_root(y, f).values, torch.full_like(f, 2.0), rtol=1e-11, atol=0)


def test_fisher_information_is_the_mean_curvature():
    # another way to it: E[-∂² log p], against the E[r²] of the table
    likelihood = StudentT(3.0, 0.7)
    u = torch.linspace(-20, 20, 4001, dtype=torch.float64).unsqueeze(
        1
    )  # y = sinh u: exponential decay
    y = (0.7 * u.sinh()).requires_grad_()
    f = torch.zeros_like(y)
    (first,) = torch.autograd.grad(likelihood.log_prob(y, f).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), y)
    density = likelihood.log_prob(y, f).exp().unsqueeze(1) * 0.7 * u.cosh()
    information = -(density * second).sum() * 40 / 4000
    root = likelihood.curvature_root(y[:1], f[:1]).values
    close(root.square().squeeze(), information, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outliers_never_overflow(dtype):
    largest = torch.finfo(dtype).max ** 0.9
    y = torch.tensor([[largest], [-largest], [0.0], [1e-30]], dtype=dtype)
    f = torch.zeros_like(y).requires_grad_()
    likelihood = StudentT(4.0, 1e-3)
    log_prob, residual = likelihood.log_prob(y, f), likelihood.residual(y, f)
    (gradient,) = torch.autograd.grad(log_prob.sum(), f)
    for value in (log_prob, residual, gradient):
        assert value.dtype == dtype
        assert torch.isfinite(value).all()
    close(gradient, residual)
    assert residual[0].abs() < 1e-20  # an outlier pulls with 1 / distance


def test_draws_have_the_distribution():
    count = 20_000
    likelihood, f = StudentT([2.5, 50.0], [0.3, 2.0]), torch.tensor([[1.0, -1.0]]).double()
    draws = likelihood.sample(f.expand(count, -1, -1), generator=torch.Generator().manual_seed(0))
    assert draws.shape == (count, 1, 2)
    for i, (freedom, scale) in enumerate([(2.5, 0.3), (50.0, 2.0)]):
        z = ((draws[:, 0, i] - f[0, i]) / scale).detach().numpy()
        assert kstest(z, student(freedom).cdf).pvalue > 1e-3
    half = likelihood.sample(f.float(), generator=torch.Generator().manual_seed(0))
    assert half.dtype == torch.float32


def test_moments():
    likelihood, f = StudentT([3.0, 6.0], [1.0, 2.0]), tensor(4, 2)
    close(likelihood.conditional_mean(f), f)
    expected = torch.tensor([student(3.0).var(), 4 * student(6.0).var()]).double().expand(4, 2)
    close(likelihood.conditional_variance(f), expected, rtol=1e-13, atol=0)


def test_few_degrees_of_freedom_have_no_variance():
    with pytest.raises(ValueError, match="degrees_of_freedom"):
        StudentT(1.5)
    positive = gpytorch.constraints.Positive(transform=torch.exp, inv_transform=torch.log)
    likelihood = StudentT(1.5, degrees_of_freedom_constraint=positive)
    variance = likelihood.conditional_variance(tensor(2, 1))
    assert (variance == math.inf).all()
    assert torch.isfinite(likelihood.curvature_root(tensor(2, 1), tensor(2, 1)).values).all()


def test_hyperparameters_are_settable_and_checked():
    likelihood = as_likelihood("student_t")
    likelihood.degrees_of_freedom, likelihood.scale = 7.0, 0.5
    assert likelihood.degrees_of_freedom.item() == pytest.approx(7.0, rel=1e-14)
    assert likelihood.scale.item() == pytest.approx(0.5, rel=1e-14)
    assert "scale=0.5" in repr(likelihood)
    with pytest.raises(ValueError, match="scale"):
        StudentT(scale=0.0)
    with pytest.raises(ValueError, match=r"scale: has 2 values.*3 outputs"):
        StudentT(scale=[1.0, 2.0]).check_targets(torch.ones(5, 3), (3,), torch.float64)
    with pytest.raises(ValueError, match=r"degrees_of_freedom: has 2 values.*3 outputs"):
        StudentT([3.0, 4.0]).check_targets(torch.ones(5, 3), (3,), torch.float64)
    with pytest.raises(ValueError, match="y: has shape"):
        StudentT().check_targets(torch.ones(5, 1), (3,), torch.float64)
