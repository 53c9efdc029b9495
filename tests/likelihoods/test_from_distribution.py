"""Likelihoods from torch.distributions: Fisher information, moments, draws, supports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import distributions as D
from torch import nn

from lingp.likelihoods import (
    Bernoulli,
    Binomial,
    Categorical,
    FromDistribution,
    Gaussian,
    NegativeBinomial,
    Poisson,
)


def curvature(likelihood, y, f):
    root = likelihood.curvature_root(y, f)
    eye = torch.eye(f.shape[-1], dtype=f.dtype).expand(len(f), -1, -1)
    return root.apply(root.t_apply(eye))


def two(f):
    return f[..., 0], f[..., 1].exp()


SAME = {
    "poisson": (lambda f: D.Poisson(f.exp()), Poisson(), (2,), [[0, 3], [5, 1]]),
    "bernoulli": (lambda f: D.Bernoulli(logits=f), Bernoulli(), (2,), [[0, 1], [1, 1]]),
    "categorical": (lambda f: D.Categorical(logits=f), Categorical(), (3,), [0, 2]),
    "binomial": (lambda f: D.Binomial(6, logits=f), Binomial(6), (1,), [0, 5]),
    "gaussian": (lambda f: D.Normal(f, 0.3**0.5), Gaussian(0.3), (2,), [[0.1, 2.0], [0.0, 1.0]]),
    "independent": (
        lambda f: D.Independent(D.Normal(f, 0.3**0.5), 1),
        Gaussian(0.3),
        (2,),
        [[0.1, 2.0], [0.0, 1.0]],
    ),
    # Fisher and Hessian differ in f but for the Hessian's count
    "negative-binomial": (
        lambda f: D.NegativeBinomial(2.5, logits=f - np.log(2.5)),
        NegativeBinomial(0.4),
        (),
        [3.0, 0.0],
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_it_is_the_closed_form_likelihood(name):
    make, closed, shape, targets = SAME[name]
    likelihood, targets = FromDistribution(make), torch.tensor(targets)
    y = likelihood.check_targets(targets, shape, torch.float64)
    assert torch.equal(y, closed.check_targets(targets, shape, torch.float64))
    assert likelihood.target_shape(shape) in (closed.target_shape(shape), (1,))
    num_outputs = torch.Size(shape).numel()
    f = torch.randn(2, num_outputs, generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(likelihood.log_prob(y, f), closed.log_prob(y, f))
    torch.testing.assert_close(likelihood.residual(y, f), closed.residual(y, f))
    torch.testing.assert_close(
        curvature(likelihood, y, f), curvature(closed, y, f), rtol=1e-12, atol=1e-13
    )
    torch.testing.assert_close(likelihood.conditional_mean(f), closed.conditional_mean(f))
    torch.testing.assert_close(likelihood.conditional_variance(f), closed.conditional_variance(f))
    assert likelihood.moment_shape(shape) in (closed.moment_shape(shape), (1,))


# family, its reading of f, the range its targets are integrated over, the rule
CONTINUOUS = {
    "normal": (lambda f: D.Normal(*two(f)), (-30, 30), "log-normalizer"),
    "gamma": (lambda f: D.Gamma(3 + f[..., 0].exp(), f[..., 1].exp()), (0, 60), "log-normalizer"),
    "beta": (lambda f: D.Beta(1 + f[..., 0].exp(), 1 + f[..., 1].exp()), (0, 1), "log-normalizer"),
    "exponential": (lambda f: D.Exponential(f[..., 0].exp()), (0, 60), "log-normalizer"),
    "cauchy": (lambda f: D.Cauchy(*two(f)), (-np.inf, np.inf), "Kullback-Leibler"),
    "laplace": (lambda f: D.Laplace(*two(f)), (-60, 60), "closed form"),
    "gumbel": (lambda f: D.Gumbel(*two(f)), (-10, 80), "Kullback-Leibler"),
    "lognormal": (lambda f: D.LogNormal(*two(f)), (0, np.inf), "Kullback-Leibler"),
    "halfnormal": (lambda f: D.HalfNormal(f[..., 0].exp()), (0, 40), "Kullback-Leibler"),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_fisher_information_is_the_expected_square_of_the_score(name):
    make, (lower, upper), rule = CONTINUOUS[name]
    likelihood = FromDistribution(make)
    f = torch.tensor([[0.4, 0.2]], dtype=torch.float64)
    one = torch.full((1,), 0.5, dtype=torch.float64)
    y = likelihood.check_targets(one, (2,), torch.float64)
    assert rule in repr(likelihood)
    actual = curvature(likelihood, y, f)[0]

    at, weights = rule_over(lower, upper, kink=0.4)
    score = likelihood.residual(at.unsqueeze(-1), f.expand(len(at), -1))
    weights = weights * likelihood.log_prob(at.unsqueeze(-1), f.expand(len(at), -1)).exp()
    expected = torch.einsum("n,ni,nj->ij", weights, score, score)
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-8)


def rule_over(lower, upper, kink, num_panels=400):
    """Composite Gauss-Legendre nodes and weights, with a panel's end where a density has a kink."""
    x, w = (torch.tensor(a) for a in np.polynomial.legendre.leggauss(20))
    ends = torch.linspace(0, 1, num_panels + 1, dtype=torch.float64)
    if lower == -np.inf:
        ends = torch.cat([ends, torch.tensor([0.5 + np.arctan(kink) / np.pi])]).sort().values
    else:
        top = kink / (1 + kink) if upper == np.inf else (kink - lower) / (upper - lower)
        ends = torch.cat([ends, torch.tensor([top], dtype=torch.float64)]).sort().values
    half = ends.diff().unsqueeze(-1) / 2
    t, weights = (ends[:-1, None] + half * (1 + x)).flatten(), (half * w).flatten()
    if lower == -np.inf:
        y = torch.tan(np.pi * (t - 0.5))
        return y, weights * np.pi * (1 + y.square())
    if upper == np.inf:
        return t / (1 - t), weights / (1 - t).square()
    return lower + (upper - lower) * t, (upper - lower) * weights


def test_several_dimensions_at_once():
    scale = torch.tensor([[1.0, 0.0], [0.7, 0.5]], dtype=torch.float64)
    likelihood = FromDistribution(lambda f: D.MultivariateNormal(f, scale_tril=scale))
    y = likelihood.check_targets(torch.zeros(3, 2), (2,), torch.float64)
    f = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).double()
    expected = (scale @ scale.mT).inverse().expand(3, -1, -1)
    torch.testing.assert_close(curvature(likelihood, y, f), expected, rtol=1e-10, atol=1e-10)
    simplex = FromDistribution(lambda f: D.Dirichlet(f.exp()))
    y = simplex.check_targets(torch.full((3, 2), 0.5), (2,), torch.float64)
    a = f.exp()
    psi = torch.polygamma(1, a)
    total = torch.polygamma(1, a.sum(-1, keepdim=True)).unsqueeze(-1)
    expected = (torch.diag_embed(psi) - total) * a.unsqueeze(-1) * a.unsqueeze(-2)
    torch.testing.assert_close(curvature(simplex, y, f), expected, rtol=1e-10, atol=1e-10)


def test_families_without_a_fisher_rule_use_the_hessian_and_say_so():
    likelihood = FromDistribution(lambda f: D.StudentT(4.0, f))
    y = likelihood.check_targets(torch.tensor([0.0, 5.0]), (), torch.float64)
    assert "StudentT, curvature: PSD part of the Hessian" in repr(likelihood)
    values = curvature(likelihood, y, torch.zeros(2, 1).double())[:, 0, 0]
    torch.testing.assert_close(values, torch.tensor([1.25, 0.0], dtype=torch.float64))
    # parameters inside a transform: torch's own divergence would miss them
    shifted = FromDistribution(
        lambda f: D.TransformedDistribution(
            D.Normal(torch.zeros_like(f), 2.0), [D.AffineTransform(f, 1.0)]
        )
    )
    y = shifted.check_targets(torch.zeros(1), (), torch.float64)
    assert curvature(shifted, y, torch.ones(1, 1).double()).item() == pytest.approx(0.25)


def test_the_hessian_on_request():
    f = torch.tensor([[0.3], [0.3]], dtype=torch.float64)
    shape = 2.0
    likelihood = FromDistribution(lambda f: D.Gamma(shape, (-f).exp()), curvature="hessian")
    y = likelihood.check_targets(torch.tensor([1.0, 4.0]), (), torch.float64)
    expected = y * (-f).exp()
    torch.testing.assert_close(curvature(likelihood, y, f)[:, 0], expected)
    assert "PSD part of the Hessian" in repr(likelihood)


def test_draws_are_repeatable_and_leave_the_global_generator_alone():
    likelihood = FromDistribution(lambda f: D.Gamma(2.0, (-f).exp()))
    f = torch.zeros(20_000, 1).double()
    before = torch.random.get_rng_state()
    draws = likelihood.sample(f, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(draws, likelihood.sample(f, generator=torch.Generator().manual_seed(0)))
    generator = torch.Generator().manual_seed(0)
    first = likelihood.sample(f, generator=generator)
    assert not torch.equal(first, likelihood.sample(f, generator=generator))
    assert abs(draws.mean().item() - 2.0) < 4 * (2.0 / 20_000) ** 0.5
    predictive = likelihood.predictive(f[:3], torch.full((3, 1, 1), 0.1).double())
    assert predictive.sample(4, torch.Generator().manual_seed(1)).shape == (4, 3, 1)


def test_labels():
    likelihood = FromDistribution(lambda f: D.Categorical(logits=f))
    assert likelihood.num_labels((4,)) == 4
    assert likelihood.target_shape((4,)) == ()
    assert likelihood.moment_shape((4,)) == (4,)
    assert FromDistribution(lambda f: D.Poisson(f.exp())).num_labels((1,)) is None
    f = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double()
    predictive = likelihood.predictive(f, 0.3 * torch.eye(4).double().expand(5, -1, -1))
    normal = torch.randn(50_000, 5, 4, generator=torch.Generator().manual_seed(1)).double()
    probs = (f + 0.3**0.5 * normal).softmax(-1)
    error = probs.std(0) / 50_000**0.5
    assert ((predictive.mean - probs.mean(0)).abs() < 4 * error + 1e-3).all()
    y = torch.tensor([0, 1, 2, 3, 0])
    expected = predictive.mean.gather(-1, y.unsqueeze(-1))[:, 0].log()
    torch.testing.assert_close(predictive.log_prob(y.double().unsqueeze(-1)), expected)
    total = (predictive.mean * (1 - predictive.mean)).sum(-1)
    torch.testing.assert_close(predictive.variance.sum(-1), total)


def test_float32_stays_float32():
    likelihood = FromDistribution(Noise())
    y = likelihood.check_targets(torch.ones(3), (), torch.float32)
    f = torch.zeros(3, 1)
    values = [
        y,
        likelihood.log_prob(y, f),
        likelihood.residual(y, f),
        likelihood.curvature_root(y, f).values,
        likelihood.conditional_mean(f),
        likelihood.conditional_variance(f),
        likelihood.sample(f, generator=torch.Generator().manual_seed(0)),
    ]
    assert {value.dtype for value in values} == {torch.float32}


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, f):
        return D.Normal(f, self.log_scale.exp())


def test_a_modules_parameters_are_hyperparameters():
    likelihood = FromDistribution(Noise())
    assert len(list(likelihood.parameters())) == 1
    y = likelihood.check_targets(torch.ones(3), (), torch.float64)
    f = torch.zeros(3, 1).double()
    likelihood.curvature_root(y, f).values.sum().backward()
    torch.testing.assert_close(
        likelihood.function.log_scale.grad, torch.tensor(-3.0, dtype=torch.float64)
    )


@pytest.mark.parametrize(
    ("make", "y", "shape", "error", "message"),
    [
        (lambda f: D.Poisson(f.exp()), [-1.0], (), ValueError, "support of Poisson.*got -1"),
        (lambda f: D.Gamma(2.0, f.exp()), [-0.5], (), ValueError, "support of Gamma"),
        (lambda f: D.Categorical(logits=f), [3], (3,), ValueError, "support of Categorical"),
        (lambda f: D.Uniform(-f.exp(), f.exp()), [0.0], (), ValueError, "moves with f"),
        (lambda f: f, [0.0], (), TypeError, "expected a torch.distributions.Distribution"),
        (lambda f: D.Normal(f.sum(), 1.0), [0.0], (), ValueError, "batch shape"),
        (lambda f: D.Normal(f, 1.0), [[0.0, 1.0]], (), ValueError, "y: has shape"),
    ],
)
def test_bad_functions_and_targets(make, y, shape, error, message):
    with pytest.raises(error, match=message):
        FromDistribution(make).check_targets(torch.tensor(y), shape, torch.float64)


def test_bad_arguments():
    with pytest.raises(TypeError, match="distribution: expected a function"):
        FromDistribution(D.Normal(0.0, 1.0))
    with pytest.raises(ValueError, match="curvature"):
        FromDistribution(lambda f: D.Poisson(f.exp()), curvature="ggn")
