"""A user's own likelihood: its root, moments, hyperparameters, and what errors say."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal
from torch.nn.functional import logsigmoid

from lingp.likelihoods import AutodiffLikelihood, Bernoulli, Categorical, FromDistribution
from lingp.likelihoods.autodiff import unchecked_distributions
from lingp.linalg.psd import psd_root


def symmetric(values, seed=0):
    """A symmetric matrix of given eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    size = len(values)
    vectors = torch.linalg.qr(torch.randn(size, size, generator=generator).double())[0]
    return vectors @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ vectors.mT


SPECTRA = {
    "distinct": [3.0, 1.0, 0.2],
    "repeated": [2.0, 2.0, 0.5],
    "identity": [1.0, 1.0, 1.0],
    "indefinite": [2.0, 0.5, -1.0],
    "two negative": [2.0, -1.0, -1.0],
}


@pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA)
def test_root_of_a_matrix_and_its_gradient(values):
    matrix = symmetric(values)
    root = psd_root(matrix)
    expected = symmetric([max(v, 0.0) for v in values])
    torch.testing.assert_close(root @ root, expected, rtol=1e-14, atol=1e-14)
    assert torch.equal(root, root.mT) or (root - root.mT).abs().max() < 1e-15
    assert torch.autograd.gradcheck(
        lambda a: psd_root(0.5 * (a + a.mT)), matrix.requires_grad_(), rtol=1e-6, atol=1e-8
    )


def test_gradient_at_equal_logits_where_eigh_has_none():
    """Softmax at f = 0: the curvature has a repeated eigenvalue and a zero one."""
    f = torch.zeros(4, dtype=torch.float64, requires_grad=True)

    def curvature(f):
        p = f.softmax(-1)
        return torch.diag(p) - torch.outer(p, p)

    values, vectors = torch.linalg.eigh(curvature(f))
    (vectors * values.clamp(min=0).sqrt()).sum().backward()
    assert not torch.isfinite(f.grad).all()
    assert torch.isfinite(torch.autograd.grad(psd_root(curvature(f)).sum(), f)[0]).all()

    def squared(f):
        root = psd_root(curvature(f))
        return root @ root.mT

    actual = torch.autograd.functional.jacobian(squared, f)
    torch.testing.assert_close(actual, torch.autograd.functional.jacobian(curvature, f))


def test_zero_and_huge_matrices():
    for scale in (0.0, 1e-200, 1e200):
        matrix = (scale * symmetric(SPECTRA["distinct"])).requires_grad_()
        root = psd_root(matrix)
        torch.testing.assert_close(root @ root, matrix, rtol=1e-13, atol=0.0)
        assert torch.isfinite(torch.autograd.grad(root.sum(), matrix)[0]).all()


def softmax_log_prob(y, f):
    return f.log_softmax(-1)[y.long()]


def test_it_is_the_closed_form_likelihood():
    generator = torch.Generator().manual_seed(0)
    f = 2 * torch.randn(7, 4, generator=generator).double()
    labels = torch.randint(4, (7,), generator=generator)
    own, closed = AutodiffLikelihood(softmax_log_prob, target_shape=()), Categorical()
    y = own.check_targets(labels, (4,), torch.float64)
    assert torch.equal(y, closed.check_targets(labels, (4,), torch.float64))
    torch.testing.assert_close(own.log_prob(y, f), closed.log_prob(y, f))
    torch.testing.assert_close(own.residual(y, f), closed.residual(y, f))
    ours, theirs = (lik.curvature_root(y, f) for lik in (own, closed))
    eye = torch.eye(4, dtype=torch.float64).expand(7, -1, -1)
    assert ours.rank == 4
    torch.testing.assert_close(
        ours.apply(ours.t_apply(eye)), theirs.apply(theirs.t_apply(eye)), rtol=1e-12, atol=1e-14
    )


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(self, y, f):
        return Normal(f, self.log_scale.exp()).log_prob(y).sum()


def test_a_modules_parameters_are_hyperparameters():
    likelihood = AutodiffLikelihood(Scaled())
    assert [name for name, _ in likelihood.named_parameters()] == ["density.log_scale"]
    assert list(likelihood.named_priors()) == []
    y, f = torch.ones(3, 2).double(), torch.zeros(3, 2).double()
    root = likelihood.curvature_root(y, f).values
    root.sum().backward()
    # R = exp(-log_scale) I
    expected = -6 * torch.tensor(-0.3, dtype=torch.float64).exp()
    torch.testing.assert_close(likelihood.density.log_scale.grad, expected)


class ManyScales(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, f):
        return Normal(f, self.log_scale.exp())


class ManyScalesLogProb(ManyScales):
    def forward(self, y, f):
        return super().forward(f).log_prob(y).sum()


@pytest.mark.parametrize(
    "make",
    [lambda: AutodiffLikelihood(ManyScalesLogProb()), lambda: FromDistribution(ManyScales())],
    ids=["autodiff", "distribution"],
)
def test_a_modules_parameters_follow_the_device_of_f(make):
    """Tensors on "meta" have a device and no values."""
    likelihood = make()
    f = torch.zeros(3, 2, device="meta")
    y = torch.ones(3, 2, device="meta")
    with unchecked_distributions():
        root = likelihood.curvature_root(y, f)
        values = (likelihood.log_prob(y, f), likelihood.residual(y, f), *root.tensors())
    for value in values:
        assert value.device.type == "meta"
        assert value.dtype == torch.float32
    assert all(p.device.type == "cpu" for p in likelihood.parameters())


def test_distributions_can_be_used_inside_and_keep_their_checks_outside():
    y, f = torch.ones(3, 1).double(), torch.zeros(3, 1).double()
    likelihood = AutodiffLikelihood(lambda y, f: Normal(f, 1.0).log_prob(y).sum())
    torch.testing.assert_close(likelihood.log_prob(y, f), Normal(f, 1.0).log_prob(y)[:, 0])
    assert Distribution._validate_args
    with pytest.raises(ZeroDivisionError), unchecked_distributions():
        raise ZeroDivisionError
    assert Distribution._validate_args


def bernoulli_log_prob(y, f):
    return logsigmoid((2 * y - 1) * f).sum()


def bernoulli(**given):
    return AutodiffLikelihood(bernoulli_log_prob, **given)


def test_predictive_is_that_of_the_closed_form():
    mean = torch.tensor([[0.5], [-2.0], [3.0]], dtype=torch.float64)
    covariance = torch.tensor([0.3, 2.0, 5.0], dtype=torch.float64).reshape(3, 1, 1)
    y = torch.tensor([[1.0], [1.0], [0.0]], dtype=torch.float64)
    own = bernoulli(mean=torch.sigmoid, variance=lambda f: f.sigmoid() * (-f).sigmoid())
    expected = Bernoulli().predictive(mean, covariance)
    actual = own.predictive(mean, covariance)
    # 1024 Sobol nodes in one dimension: an error of order 1/1024
    torch.testing.assert_close(actual.log_prob(y), expected.log_prob(y), rtol=0, atol=1e-3)
    torch.testing.assert_close(actual.mean, expected.mean, rtol=0, atol=5e-4)
    torch.testing.assert_close(actual.variance, expected.variance, rtol=0, atol=5e-4)
    num = 20_000
    drawn = own.predictive(
        mean,
        covariance,
        "monte_carlo",
        num_samples=num,
        generator=torch.Generator().manual_seed(0),
    )
    error = (expected.epistemic_variance / num).sqrt()
    assert ((drawn.mean - expected.mean).abs() < 4 * error).all()
    again = own.predictive(
        mean,
        covariance,
        "monte_carlo",
        num_samples=num,
        generator=torch.Generator().manual_seed(0),
    )
    assert torch.equal(drawn.mean, again.mean)


def test_a_method_that_is_named_and_not_computed_is_an_error():
    class Named(AutodiffLikelihood):
        methods = ("exact", *AutodiffLikelihood.methods)

    likelihood = Named(lambda y, f: -((y - f) ** 2))
    with pytest.raises(TypeError, match=r"methods: Named names 'exact' .* write integrated"):
        likelihood.predictive(torch.zeros(2, 1).double(), torch.ones(2, 1, 1).double())


def test_log_prob_alone_predicts_log_prob_and_says_what_moments_need():
    mean, covariance = torch.zeros(2, 1).double(), torch.ones(2, 1, 1).double()
    predictive = bernoulli().predictive(mean, covariance)
    expected = torch.full((2,), 0.5, dtype=torch.float64).log()
    torch.testing.assert_close(
        predictive.log_prob(torch.ones(2, 1).double()), expected, rtol=0, atol=1e-3
    )
    with pytest.raises(ValueError, match=r"mean: .*AutodiffLikelihood\(\.\.\., mean=\.\.\.\)"):
        _ = predictive.mean
    with pytest.raises(ValueError, match=r"variance: .*variance=\.\.\."):
        bernoulli(mean=torch.sigmoid).predictive(mean, covariance).variance  # noqa: B018
    with pytest.raises(ValueError, match=r"sample: .*sample=\.\.\."):
        predictive.sample(3)


def test_targets_of_another_shape_than_outputs():
    def log_prob(y, f):
        count, exposure = y
        return count * f[0] - exposure * f[0].exp()

    likelihood = AutodiffLikelihood(log_prob, target_shape=2)
    y = likelihood.check_targets(torch.tensor([[3.0, 2.0], [0.0, 1.0]]), (), torch.float64)
    f = torch.tensor([[0.1], [0.2]], dtype=torch.float64)
    root = likelihood.curvature_root(y, f).values[:, 0, 0]
    torch.testing.assert_close(root.square(), y[:, 1] * f[:, 0].exp())
    assert likelihood.target_shape(()) == (2,)
    with pytest.raises(ValueError, match=r"y: has shape \(N,\)"):
        likelihood.check_targets(torch.zeros(3), (), torch.float64)


def test_float32_stays_float32():
    likelihood = AutodiffLikelihood(Scaled())
    y, f = torch.ones(3, 2), torch.zeros(3, 2)
    exact = AutodiffLikelihood(Scaled()).curvature_root(y.double(), f.double()).values
    for values in (likelihood.log_prob(y, f), likelihood.residual(y, f)):
        assert values.dtype == torch.float32
    root = likelihood.curvature_root(y, f).values
    assert root.dtype == torch.float32
    torch.testing.assert_close(root, exact.float())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: AutodiffLikelihood(None), TypeError, "log_prob: expected a function"),
        (lambda: AutodiffLikelihood(len, mean=3.0), TypeError, "mean: expected a function"),
        (lambda: AutodiffLikelihood(len, curvature="ggn"), ValueError, "curvature: .*'ggn'"),
        (lambda: AutodiffLikelihood(len, curvature="gauss_newton"), ValueError, "give link"),
    ],
)
def test_errors_name_the_argument(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_log_prob_that_is_not_one_number():
    likelihood = AutodiffLikelihood(lambda y, f: -(y - f).square())
    with pytest.raises(ValueError, match=r"log_prob: expected one number.*sum over targets"):
        likelihood.check_targets(torch.zeros(4, 3), (3,), torch.float64)


def test_a_log_prob_that_vmap_cannot_run():
    likelihood = AutodiffLikelihood(lambda y, f: f.log_softmax(-1)[y[0].long()], target_shape=())
    with pytest.raises(ValueError, match=r"log_prob: .*torch\.vmap.*y\.long\(\)"):
        likelihood.check_targets(torch.zeros(4), (3,), torch.float64)


def test_draws_of_the_wrong_shape():
    likelihood = bernoulli(sample=lambda f, generator: f[0])
    with pytest.raises(ValueError, match="sample: expected"):
        likelihood.sample(torch.zeros(2, 3, 1))


def test_repr_says_how_curvature_is_made():
    assert "bernoulli_log_prob, curvature=hessian" in repr(bernoulli())
    assert "curvature=softmax_log_prob" in repr(bernoulli(curvature=softmax_log_prob))


def test_second_derivatives_of_a_root_are_refused_not_wrong():
    matrix = torch.eye(2, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(psd_root(matrix).sum(), matrix, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(gradient.sum(), matrix)
