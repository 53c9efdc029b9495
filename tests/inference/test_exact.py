"""Weight space = function space = the dense formulas: mean, covariance, evidence, gradients."""

from __future__ import annotations

import pytest
import torch
from laplace_cases import CASES, KINDS, dense_reference, hyperparameters, make_laplace

MEANS = ["network", "refit"]


def close(actual, expected, rtol=1e-8):
    """Relative to the largest entry: small covariances are differences of large numbers."""
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=rtol * scale)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_exact_equals_dense_formulas(case, kind, space, mean):
    net, x, y, x_test = case.build()
    prior, likelihood = hyperparameters(kind, case.num_outputs)
    laplace = make_laplace(net, x, y, prior, likelihood, space, mean)
    dense = dense_reference(net, x, y, x_test, prior, likelihood, mean)
    parameters = [*prior.parameters(), *likelihood.parameters()]

    evidence = laplace.log_marginal_likelihood()
    close(evidence, dense.log_evidence)
    gradients = torch.autograd.grad(evidence, parameters)
    expected = torch.autograd.grad(dense.log_evidence, parameters)
    for actual, wanted in zip(gradients, expected, strict=True):
        close(actual, wanted)

    outputs, factors = laplace.training.linearized.factors(x_test)
    covariance = dense.covariance.detach()
    with torch.no_grad():
        close(laplace.posterior().covariance(factors), covariance)
        blocks = laplace.posterior().marginal_covariance(factors)
        shape = (len(x_test), case.num_outputs) * 2
        close(blocks, torch.einsum("ncnd->ncd", covariance.view(shape)))
        shift = laplace.weight_shift()
        if shift is not None:
            outputs = outputs + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)
    close(outputs.reshape(-1), dense.mean.detach())


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize("kind", ["isotropic/scalar", "layerwise/per-output"])
def test_evidence_gradient_by_finite_differences(kind, space, mean):
    net, x, y, _ = CASES[3].build()
    prior, likelihood = hyperparameters(kind, 3)
    laplace = make_laplace(net, x, y, prior, likelihood, space, mean)
    parameters = [*prior.parameters(), *likelihood.parameters()]
    gradients = torch.autograd.grad(laplace.log_marginal_likelihood(), parameters)
    step = 1e-5
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            flat, flat_gradient = parameter.view(-1), gradient.reshape(-1)
            for i in range(len(flat)):
                values = []
                for sign in (1, -1):
                    flat[i] += sign * step
                    values.append(float(laplace.log_marginal_likelihood()))
                    flat[i] -= sign * step
                difference = (values[0] - values[1]) / (2 * step)
                assert flat_gradient[i].item() == pytest.approx(difference, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize("kind", ["isotropic/scalar", "layerwise/per-output"])
def test_results_dont_depend_on_memory(kind, space, mean):
    net, x, y, x_test = CASES[3].build()
    results = []
    for keep_bytes, chunk_bytes in ((1 << 30, 1 << 27), (0, 1)):
        prior, likelihood = hyperparameters(kind, 3)
        laplace = make_laplace(
            net, x, y, prior, likelihood, space, mean,
            keep_bytes=keep_bytes, chunk_bytes=chunk_bytes,
        )  # fmt: skip
        assert laplace.training.factors_kept == (keep_bytes > 0)
        evidence = laplace.log_marginal_likelihood()
        gradients = torch.autograd.grad(evidence, [*prior.parameters(), *likelihood.parameters()])
        _, factors = laplace.training.linearized.factors(x_test)
        with torch.no_grad():
            covariance = laplace.posterior().covariance(factors)
        results.append((evidence, covariance, *gradients))
    for kept, recomputed in zip(*results, strict=True):
        close(recomputed, kept, rtol=1e-12)


def test_changed_hyperparameters_are_never_stale():
    net, x, y, x_test = CASES[1].build()
    for space in ("weight", "function"):
        prior, likelihood = hyperparameters("isotropic/scalar", 3)
        laplace = make_laplace(net, x, y, prior, likelihood, space, "refit")
        first = laplace.posterior()
        assert laplace.posterior() is first
        with torch.no_grad():
            old = laplace.log_marginal_likelihood()
        for change in (
            lambda prior, _: prior.initialize(precision=3.0),
            lambda _, likelihood: likelihood.initialize(noise=0.1),
            lambda prior, _: prior.mean.fill_(0.4),
        ):
            change(prior, likelihood)
            dense = dense_reference(net, x, y, x_test, prior, likelihood, "refit")
            with torch.no_grad():
                new = laplace.log_marginal_likelihood()
                outputs, factors = laplace.training.linearized.factors(x_test)
                close(laplace.posterior().covariance(factors), dense.covariance)
                mean = outputs + factors.matmul(laplace.weight_shift().unsqueeze(-1)).squeeze(-1)
            close(new, dense.log_evidence)
            close(mean.reshape(-1), dense.mean)
            assert abs(float(new - old)) > 1e-3
            old = new


@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize("kind", ["isotropic/scalar", "layerwise/per-output"])
def test_samples_have_the_posterior_covariance(kind, space):
    net, x, y, x_test = CASES[1].build()
    prior, likelihood = hyperparameters(kind, 3)
    laplace = make_laplace(net, x, y, prior, likelihood, space)
    posterior = laplace.posterior()
    _, factors = laplace.training.linearized.factors(x_test)
    num_samples = 20_000
    with torch.no_grad():
        expected = posterior.covariance(factors)
        draws = posterior.sample(num_samples, torch.Generator().manual_seed(0))
        again = posterior.sample(num_samples, torch.Generator().manual_seed(0))
        f = factors.matmul(posterior.scale.unsqueeze(-1) * draws).flatten(0, 1)
    assert torch.equal(draws, again)
    variances = expected.diagonal()
    # Var of a sample covariance: (S_ii S_jj + S_ij^2) / n
    error = ((variances.outer(variances) + expected.square()) / num_samples).sqrt()
    assert ((f @ f.mT / num_samples - expected).abs() / error).max() < 5
    assert (f.mean(1).abs() / (variances / num_samples).sqrt()).max() < 5


@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize("mean", MEANS)
def test_second_derivatives_of_the_evidence(mean, space):
    net, x, y, x_test = CASES[3].build()
    prior, likelihood = hyperparameters("isotropic/scalar", 3)
    laplace = make_laplace(net, x, y, prior, likelihood, space, mean)
    dense = dense_reference(net, x, y, x_test, prior, likelihood, mean)
    parameters = [prior.raw_precision, likelihood.raw_noise]
    hessians = []
    for value in (laplace.log_marginal_likelihood(), dense.log_evidence):
        gradients = torch.autograd.grad(value, parameters, create_graph=True)
        rows = [torch.autograd.grad(g, parameters, retain_graph=True) for g in gradients]
        hessians.append(torch.tensor([[float(h) for h in row] for row in rows]))
    close(hessians[0], hessians[1])
