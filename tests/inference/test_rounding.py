"""Streaming QR: equal to Cholesky where both work, and what keeps float32 accurate past it."""

from __future__ import annotations

import warnings

import pytest
import torch
from laplace_cases import CASES, dense_reference, hyperparameters, make_laplace

from lingp.inference import RoundingWarning, factorize
from lingp.inference.factorize import largest_eigenvalue
from lingp.likelihoods import Gaussian
from lingp.linalg.streaming import streamed_gram, streamed_triangle
from lingp.priors import Isotropic, Layerwise


def _blocks(scale, weights):
    generator = torch.Generator().manual_seed(0)
    for rows in (1, 7, 3, 20):
        block = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
        yield block * scale * weights.sum()


def test_streamed_gram_and_triangle_are_the_same_matrix_with_the_same_gradients():
    scale = torch.linspace(0.5, 2, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.ones(3, dtype=torch.float64, requires_grad=True)
    eye = torch.eye(6, dtype=torch.float64)
    stacked = torch.cat([eye, *_blocks(scale, weights)])
    expected = torch.linalg.cholesky(stacked.mT @ stacked).mT
    triangle = streamed_triangle(_blocks, eye, scale, weights)
    gram = streamed_gram(_blocks, eye, scale, weights)
    torch.testing.assert_close(triangle, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gram, stacked.mT @ stacked, rtol=1e-12, atol=1e-12)
    probe = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for made, wanted in ((triangle, expected), (gram, stacked.mT @ stacked)):
        actual = torch.autograd.grad((made * probe).sum(), [scale, weights], retain_graph=True)
        exact = torch.autograd.grad((wanted * probe).sum(), [scale, weights], retain_graph=True)
        for a, e in zip(actual, exact, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-10)


def test_a_second_derivative_through_streaming_raises_instead_of_being_wrong():
    scale = torch.ones(6, dtype=torch.float64, requires_grad=True)
    weights = torch.ones(3, dtype=torch.float64)
    for stream in (streamed_gram, streamed_triangle):
        value = stream(_blocks, torch.eye(6, dtype=torch.float64), scale, weights).sum()
        (gradient,) = torch.autograd.grad(value, scale, create_graph=True)
        with pytest.raises(RuntimeError):
            torch.autograd.grad(gradient.sum(), scale)


@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize("kind", ["isotropic/scalar", "layerwise/per-output"])
def test_qr_gives_what_cholesky_gives(kind, space, mean, monkeypatch):
    net, x, y, x_test = CASES[3].build()
    monkeypatch.setattr(factorize, "ROUNDING_LIMIT", 0.0)
    prior, likelihood = hyperparameters(kind, 3)
    laplace = make_laplace(net, x, y, prior, likelihood, space, mean, chunk_bytes=5000)
    dense = dense_reference(net, x, y, x_test, prior, likelihood, mean)
    parameters = [*prior.parameters(), *likelihood.parameters()]
    with pytest.warns(RoundingWarning):
        evidence = laplace.log_marginal_likelihood()
    with pytest.warns(RoundingWarning):
        posterior = laplace.posterior()
    assert posterior.factorization.from_qr
    assert evidence.item() == pytest.approx(dense.log_evidence.item(), rel=1e-9)
    gradients = torch.autograd.grad(evidence, parameters)
    for a, e in zip(gradients, torch.autograd.grad(dense.log_evidence, parameters), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-7, atol=1e-8)
    _, factors = laplace.training.linearized.factors(x_test)
    with torch.no_grad():
        covariance = posterior.covariance(factors)
        blocks = posterior.marginal_covariance(factors)
    expected = dense.covariance.detach()
    torch.testing.assert_close(covariance, expected, rtol=0, atol=1e-9 * expected.max().item())
    torch.testing.assert_close(
        blocks, torch.einsum("ncnd->ncd", expected.view(4, 3, 4, 3)), rtol=0,
        atol=1e-9 * expected.max().item(),
    )  # fmt: skip


@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize("layerwise", [False, True])
def test_float32_with_a_tiny_precision_keeps_its_accuracy(space, mean, layerwise):
    """Largest eigenvalue about 1e8: the squared matrix has no correct digit of an eigenvalue 1."""
    net, x, y, x_test = CASES[3].build(num_data=40)
    prior, likelihood = Isotropic(1e-4), Gaussian(1e-2)
    if layerwise:
        prior = Layerwise(1e-4)
    laplace = make_laplace(net, x, y, Isotropic(1e-4), likelihood, space, mean, torch.float32)
    laplace.prior = prior.bind(laplace.prior.names)
    dense = dense_reference(net, x, y, x_test, prior, likelihood, mean)
    parameters = [*prior.parameters(), *likelihood.parameters()]
    with pytest.warns(RoundingWarning, match=r"largest eigenvalue \d.*QR"):
        evidence = laplace.log_marginal_likelihood()
    with pytest.warns(RoundingWarning):
        posterior = laplace.posterior()
    assert (
        largest_eigenvalue(posterior.factorization.factor @ posterior.factorization.factor.mT) > 1e7
    )

    assert evidence.item() == pytest.approx(dense.log_evidence.item(), rel=2e-3)
    gradients = torch.autograd.grad(evidence, parameters)
    for actual, expected in zip(
        gradients, torch.autograd.grad(dense.log_evidence, parameters), strict=True
    ):
        torch.testing.assert_close(
            actual.double(), expected, rtol=1e-2, atol=1e-2 * max(1, expected.abs().max().item())
        )
    outputs, factors = laplace.training.linearized.factors(x_test)
    with torch.no_grad():
        variance = posterior.marginal_covariance(factors).diagonal(dim1=1, dim2=2).reshape(-1)
        joint = posterior.covariance(factors).diagonal()
    expected = dense.covariance.diagonal().detach()
    torch.testing.assert_close(variance.double(), expected, rtol=2e-2, atol=0)
    torch.testing.assert_close(joint.double(), expected, rtol=2e-2, atol=0)
    shift = laplace.weight_shift()
    if shift is not None:
        moved = outputs + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)
        error = (moved.double().reshape(-1) - dense.mean.detach()).abs()
        assert (error / expected.sqrt()).max() < 0.1  # in posterior standard deviations


def test_float64_needs_no_qr_where_float32_does():
    net, x, y, _ = CASES[3].build(num_data=40)
    laplace = make_laplace(net, x, y, Isotropic(1e-4), Gaussian(1e-2), "function")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RoundingWarning)
        assert not laplace.posterior().factorization.from_qr


@pytest.mark.parametrize("size", [1, 2, 30])
def test_largest_eigenvalue_is_found_from_below(size):
    root = torch.randn(
        size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64
    )
    exact = torch.linalg.eigvalsh(root @ root.mT)[-1].item()
    assert 0.8 * exact <= largest_eigenvalue(root @ root.mT) <= exact * (1 + 1e-12)
    assert largest_eigenvalue(torch.zeros(3, 3)) == 0.0


@pytest.mark.parametrize("size", [1, 5, 64, 65])
def test_trace_of_the_inverse(size, monkeypatch):
    """By halves of halves and in one piece."""
    half = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).double()
    squared = torch.eye(size, dtype=torch.float64) + half.mT @ half
    found = factorize.Factorization(torch.linalg.cholesky(squared), None, False)
    expected = torch.linalg.inv(squared).trace()
    for whole in (1, 8, 256):
        monkeypatch.setattr(factorize, "_WHOLE", whole)
        torch.testing.assert_close(found.inverse_trace(), expected, rtol=1e-12, atol=0)


def test_hyperparameters_out_of_range_are_named():
    net, x, y, _ = CASES[0].build()
    laplace = make_laplace(net, x, y, Isotropic(1e-300), Gaussian(1e-300), "function")
    with pytest.raises(ValueError, match="hyperparameter"):
        laplace.posterior()
