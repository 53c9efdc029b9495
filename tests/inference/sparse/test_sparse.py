"""The sparse posterior: exact at Z = all data, the dense formulas at any other Z."""

from __future__ import annotations

import math

import pytest
import torch
from laplace_cases import (
    CASES,
    KINDS,
    dense_jacobian,
    dense_reference,
    hyperparameters,
    make_laplace,
)
from sparse_cases import close, dense_sparse, free, moments, sparse_laplace
from torch import nn

from lingp.inference import RoundingWarning, leave_one_out, optimize
from lingp.inference.evidence import evidence
from lingp.inference.sparse import BoundSparse, Sparse
from lingp.inference.sparse.inducing import InducingPoints
from lingp.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from lingp.linearization import LinearizedNetwork
from lingp.priors import Isotropic, Layerwise

MEANS = ["network", "refit"]
KEPT = [0, 1 << 30]


@pytest.mark.parametrize("keep_bytes", KEPT)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_data_as_inducing_points_are_exact(case, kind, mean, keep_bytes):
    net, x, y, x_test = case.build()
    prior, likelihood = hyperparameters(kind, case.num_outputs)
    laplace = sparse_laplace(net, x, y, prior, likelihood, mean, slice(None), keep_bytes=keep_bytes)
    dense = dense_reference(net, x, y, x_test, prior, likelihood, mean)

    evidence = laplace.log_marginal_likelihood()
    close(evidence, dense.log_evidence)
    gradients = torch.autograd.grad(evidence, free(laplace))
    expected = torch.autograd.grad(dense.log_evidence, free(laplace))
    for actual, wanted in zip(gradients, expected, strict=True):
        close(actual, wanted)

    mean_found, covariance, blocks = moments(laplace, x_test)
    close(mean_found, dense.mean.detach())
    close(covariance, dense.covariance.detach())
    shape = (len(x_test), case.num_outputs) * 2
    close(blocks, torch.einsum("ncnd->ncd", dense.covariance.detach().view(shape)))


def test_more_rows_than_weights_are_exact_too():
    # K(Z, Z) has rank P < N·C: rounding of its null space must not show
    case = CASES[1]
    net, x, y, x_test = case.build(num_data=40)
    prior, likelihood = hyperparameters("isotropic/scalar", case.num_outputs)
    laplace = sparse_laplace(net, x, y, prior, likelihood, "refit", slice(None))
    assert laplace.training.outputs.numel() > laplace.training.num_parameters
    dense = dense_reference(net, x, y, x_test, prior, likelihood, "refit")
    mean, covariance, _ = moments(laplace, x_test)
    close(laplace.log_marginal_likelihood(), dense.log_evidence)
    close(mean, dense.mean.detach())
    close(covariance, dense.covariance.detach())


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("sites", ["mean", "network", "expected"])
@pytest.mark.parametrize(
    ("likelihood", "num_outputs"),
    [(Categorical(), 3), (Bernoulli(), 1), (Poisson(), 1)],
    ids=["categorical", "bernoulli", "poisson"],
)
def test_any_likelihood_is_exact_at_all_data(likelihood, num_outputs, sites, mean):
    case = next(c for c in CASES if c.depth == 2 and c.num_outputs == num_outputs)
    net, x, _, x_test = case.build()
    generator = torch.Generator().manual_seed(0)
    highest = num_outputs if num_outputs > 1 else 2
    y = torch.randint(highest, (len(x), 1), generator=generator).double()
    found = []
    for space in ("function", "sparse"):
        if space == "sparse":
            laplace = sparse_laplace(
                net, x, y, Layerwise(0.7), likelihood, mean, slice(None), sites=sites
            )
        else:
            laplace = make_laplace(net, x, y, Layerwise(0.7), likelihood, space, mean, sites=sites)
        evidence = laplace.log_marginal_likelihood()
        gradients = torch.autograd.grad(evidence, list(laplace.prior.parameters()))
        found.append((evidence, *gradients, *moments(laplace, x_test)))
    for actual, wanted in zip(found[1], found[0], strict=True):
        close(actual, wanted.detach(), rtol=1e-7 if sites == "expected" else 1e-8)


@pytest.mark.parametrize("complement", ["fitted", "prior"])
@pytest.mark.parametrize("keep_bytes", KEPT)
@pytest.mark.parametrize("points", ["inputs", "pairs"])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kind", KINDS)
def test_fewer_inducing_points_follow_the_dense_formulas(
    kind, mean, points, keep_bytes, complement
):
    case = CASES[3]
    net, x, y, x_test = case.build()
    prior, likelihood = hyperparameters(kind, 3)
    inputs = torch.tensor([1, 4, 10])
    columns = torch.tensor([0, 4, 5, 8]) if points == "pairs" else None
    laplace = sparse_laplace(
        net,
        x,
        y,
        prior,
        likelihood,
        mean,
        inputs,
        columns,
        keep_bytes=keep_bytes,
        complement=complement,
    )
    rows = (inputs[:, None] * 3 + torch.arange(3)).flatten()
    rows = rows if columns is None else rows[columns]
    noise = likelihood.noise
    wanted, means, covariance = dense_sparse(
        net, x, y, x_test, prior, noise, mean, rows, complement
    )

    evidence = laplace.log_marginal_likelihood()
    close(evidence, wanted)
    found = torch.autograd.grad(evidence, free(laplace))
    expected = torch.autograd.grad(wanted, free(laplace))
    for actual, gradient in zip(found, expected, strict=True):
        close(actual, gradient)
    actual_mean, actual_covariance, blocks = moments(laplace, x_test)
    close(actual_mean, means.detach())
    close(actual_covariance, covariance.detach())
    shape = (len(x_test), 3) * 2
    close(blocks, torch.einsum("ncnd->ncd", covariance.detach().view(shape)))


def test_the_bound_grows_with_the_inducing_points_and_stays_below_the_evidence():
    net, x, y, x_test = CASES[2].build(num_data=25)
    values = {"prior": [], "fitted": []}
    for complement, found in values.items():
        for count in (1, 3, 8, 15, 25):
            prior, likelihood = hyperparameters("isotropic/scalar", 1)
            laplace = sparse_laplace(
                net,
                x,
                y,
                prior,
                likelihood,
                "refit",
                slice(0, count),
                complement=complement,
            )
            found.append(laplace.log_marginal_likelihood().item())
    exact = dense_reference(net, x, y, x_test, prior, likelihood, "refit").log_evidence.item()
    for found in values.values():
        assert found == sorted(found)
        assert found[-2] < exact
        assert found[-1] == pytest.approx(exact, rel=1e-8)
    # one variance fitted to what is outside of the span makes the bound tighter
    assert all(a < b for a, b in zip(values["prior"][:-1], values["fitted"][:-1], strict=True))


def test_the_complement_has_the_variance_of_the_largest_bound():
    net, x, y, _ = CASES[3].build()
    prior, likelihood = hyperparameters("isotropic/scalar", 3)
    posterior = sparse_laplace(net, x, y, prior, likelihood, "network", [1, 4]).posterior()
    trace, outside = float(posterior.trace_term()), posterior.scale.numel() - 6

    def bound(s):  # twice what depends on s in E log p + entropy
        return outside * math.log(s) - s * (outside + trace)

    s = float(posterior.complement_variance)
    assert 0 < s < 1
    assert bound(s) > max(bound(0.999 * s), bound(1.001 * s))
    # and its value there is that of the evidence
    assert -bound(s) - outside == pytest.approx(float(posterior.bound_gap()), rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_refitted_mean_that_cannot_follow_the_data_says_so(weighted):
    """Draws of the model itself, whose functions six inducing points don't span."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    for parameter in net.parameters():
        parameter.data.normal_(generator=generator)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    jacobian, outputs = dense_jacobian(net, x), net(x).detach()
    train, test = slice(0, 40), slice(40, 60)
    _, factors = LinearizedNetwork(net).factors(x[test])
    errors = {"bound": [], "residuals": []}
    for _ in range(15):
        draw = torch.randn(len(weights) + 60, 1, generator=generator, dtype=torch.float64)
        y = outputs + jacobian @ draw[:-60] + 0.03 * draw[-60:]
        prior, likelihood = Isotropic(1.0, mean=weights), Gaussian(noise=0.0009)
        laplace = sparse_laplace(net, x[train], y[train], prior, likelihood, "refit", slice(0, 6))
        if weighted:  # as repetitions
            laplace.training.weights = torch.full((40,), 2.0, dtype=torch.float64)
            likelihood.noise = 0.0018
        error = y[test] - outputs[test] - jacobian[test] @ laplace.weight_shift().unsqueeze(-1)
        made = {"bound": laplace.solution().posterior, "residuals": laplace.posterior()}
        for name, posterior in made.items():
            variance = posterior.marginal_covariance(factors)[:, 0] + 0.0009
            errors[name].append((error.square() / variance).mean())
            assert posterior.complement_variance <= 1
    bound, residuals = (torch.stack(errors[name]).median() for name in errors)
    assert bound > 5  # far too sure
    assert 0.4 < residuals < 2  # one, give or take what 20 dependent errors leave open


def test_far_from_the_data_the_variance_survives():
    net, x, y, _ = CASES[2].build(num_data=25)
    x_far = 20 * x[:6].roll(1, 0)
    found = {}
    for complement in ("prior", "fitted"):
        prior, likelihood = hyperparameters("isotropic/scalar", 1)
        laplace = sparse_laplace(
            net, x, y, prior, likelihood, "network", slice(0, 5), complement=complement
        )
        found[complement] = moments(laplace, x_far)[1].diagonal()
    exact = dense_reference(net, x, y, x_far, prior, likelihood, "network").covariance.diagonal()
    assert bool((found["prior"] > 0.9 * exact).all())
    # the features alone, as a Nyström method has them, know nothing of what they don't span
    posterior = laplace.posterior()
    rows = posterior.features.at(laplace.training.linearized.factors(x_far)[1])
    alone = posterior._informed(rows).flatten()
    assert bool((alone < 0.5 * exact).any())
    outside = (found["prior"] - alone) * posterior.complement_variance
    close(found["fitted"], alone + outside)


def test_the_refitted_mean_is_the_optimum_within_the_span():
    case = next(c for c in CASES if c.name == "mlp2-C3")
    net, x, _, _ = case.build()
    y = torch.arange(len(x)).remainder(3).double().unsqueeze(1)
    laplace = sparse_laplace(net, x, y, Isotropic(0.7), Categorical(), "refit", [0, 3, 7])
    mode = laplace.mode()
    assert mode.converged
    jacobian = dense_jacobian(net, x)
    inducing = jacobian.view(12, 3, -1)[[0, 3, 7]].flatten(0, 1) / 0.7**0.5
    basis = torch.linalg.qr(inducing.mT).Q  # (P, m): the span, in whitened weights
    whitened = (laplace.weight_shift() - laplace.prior_deviation()) * 0.7**0.5
    close(basis @ (basis.mT @ whitened), whitened)
    residual = Categorical().residual(y, mode.outputs).reshape(-1)
    gradient = jacobian.mT @ residual / 0.7**0.5 - whitened
    assert (basis.mT @ gradient).norm() < 1e-6 * gradient.norm()


@pytest.mark.parametrize("columns", [None, torch.tensor([0, 4, 5])])
def test_samples_have_the_posterior_covariance(columns):
    net, x, y, x_test = CASES[3].build()
    prior, likelihood = hyperparameters("layerwise/scalar", 3)
    laplace = sparse_laplace(net, x, y, prior, likelihood, "network", [1, 4], columns)
    posterior, num = laplace.posterior(), 20000
    _, factors = laplace.training.linearized.factors(x_test)
    draws = posterior.sample(num, torch.Generator().manual_seed(0))
    f = factors.matmul(posterior.scale.unsqueeze(-1) * draws).flatten(0, 1)
    covariance = posterior.covariance(factors)
    error = f @ f.mT / num - covariance
    scale = covariance.diagonal().sqrt()
    # an entry's standard error is at most sqrt(2 / num) of the two deviations' product
    assert (error / scale / scale.unsqueeze(-1)).abs().max() < 5 * math.sqrt(2 / num)


def test_training_covariance_is_that_of_the_training_inputs():
    net, x, y, _ = CASES[3].build()
    prior, likelihood = hyperparameters("isotropic/scalar", 3)
    laplace = sparse_laplace(net, x, y, prior, likelihood, "network", [1, 4, 10])
    close(laplace.posterior().training_covariance(), moments(laplace, x)[2])


def test_float32_is_as_good_as_float32():
    net, x, y, x_test = CASES[2].build()
    found = []
    for dtype in (torch.float64, torch.float32):
        prior, likelihood = hyperparameters("isotropic/scalar", 1)
        laplace = sparse_laplace(net, x, y, prior, likelihood, "refit", slice(0, 6), dtype=dtype)
        mean, covariance, _ = moments(laplace, x_test.to(dtype))
        assert covariance.dtype == dtype
        found.append((mean.double(), covariance.double()))
    # rounding of I + Ψᵀ Λ Ψ, whose largest eigenvalue is about 1e3 here
    for single, double in zip(found[1], found[0], strict=True):
        close(single, double, rtol=1e-3)


def test_past_the_rounding_limit_the_factor_comes_from_a_qr():
    net, x, y, _ = CASES[2].build()
    prior, likelihood = Isotropic(1e-9), Gaussian(1e-7)
    laplace = sparse_laplace(net, x, y, prior, likelihood, "network", slice(0, 6))
    with pytest.warns(RoundingWarning):
        posterior = laplace.solution().posterior
    found = posterior.log_determinant()
    jacobian = dense_jacobian(net, x)
    basis = torch.linalg.qr(jacobian[:6].mT).Q
    singular = torch.linalg.svdvals(jacobian @ basis).log()

    def reference(prior_scale, noise):
        return (2 * singular + prior_scale.log() - noise.log()).exp().log1p().sum()

    expected = reference(1 / prior.precision, likelihood.noise)
    # L of K(Z, Z) has half of the digits for the smallest singular values
    close(found, expected, rtol=1e-6)
    gradients = torch.autograd.grad(found, free(laplace))
    wanted = torch.autograd.grad(expected, free(laplace))
    for actual, gradient in zip(gradients, wanted, strict=True):
        close(actual, gradient, rtol=1e-6)


def test_copies_among_the_inducing_points_change_nothing():
    net, x, y, x_test = CASES[3].build()
    found = []
    for rows in ([1, 4, 10], [1, 4, 4, 10, 1]):
        prior, likelihood = hyperparameters("isotropic/scalar", 3)
        laplace = sparse_laplace(net, x, y, prior, likelihood, "refit", rows)
        found.append((laplace.log_marginal_likelihood().detach(), *moments(laplace, x_test)))
    for actual, wanted in zip(found[1], found[0], strict=True):
        close(actual, wanted)


def test_options_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="num_inducing: has no meaning"):
        Sparse(num_inducing=3, inducing=torch.zeros(2, 3))
    with pytest.raises(ValueError, match="points: has no meaning"):
        Sparse(points="pairs", inducing=torch.zeros(2, 3))


def test_binding_chooses_points_and_says_how():
    net, x, y, _ = CASES[3].build()
    prior, likelihood = hyperparameters("isotropic/scalar", 3)
    laplace = make_laplace(net, x, y, prior, likelihood, "weight")
    bound = Sparse(4, "greedy").bind(laplace.training, prior, 1e9)
    assert isinstance(bound.points, InducingPoints)
    assert bound.points.num_points == 12
    assert str(bound).startswith("12 inducing points at 4 inputs, greedy among 12 of 12")
    given = Sparse(inducing=x[:2]).bind(laplace.training, prior, 1e9)
    assert str(given) == "6 inducing points as given"


@pytest.mark.parametrize("mean", MEANS)
def test_leave_one_out_is_exact_at_all_data_and_that_of_the_span_else(mean):
    net, x, y, _ = CASES[3].build()
    prior, likelihood = hyperparameters("isotropic/scalar", 3)
    exact = leave_one_out(make_laplace(net, x, y, prior, likelihood, "function", mean))
    prior, likelihood = hyperparameters("isotropic/scalar", 3)
    sparse = leave_one_out(sparse_laplace(net, x, y, prior, likelihood, mean, slice(None)))
    close(sparse.mean, exact.mean)
    close(sparse.covariance, exact.covariance)

    # a fitted complement stays that of all data
    laplace = sparse_laplace(net, x, y, prior, likelihood, "refit", [1, 4], complement="prior")
    found = leave_one_out(laplace)
    keep = torch.arange(12) != 7
    without = sparse_laplace(net, x[keep], y[keep], prior, likelihood, "refit", slice(0, 1))
    without.method = BoundSparse(laplace.method.points, 0, complement="prior")
    mean_there, _, blocks = moments(without, x[7:8])
    close(found.mean[7], mean_there)
    close(found.covariance[7], blocks[0])


def test_mackay_and_lbfgs_find_the_same_optimum_of_the_bound():
    net, x, y, _ = CASES[2].build(num_data=20)
    found = []
    for method in ("mackay", "l-bfgs"):
        prior, likelihood = hyperparameters("layerwise/scalar", 1)
        laplace = sparse_laplace(net, x, y, prior, likelihood, "refit", slice(0, 8))
        result = optimize(laplace, method=method, num_restarts=0, tolerance=1e-7)
        assert result.converged
        found.append(result.value)
    assert found[0] == pytest.approx(found[1], rel=1e-8)


@pytest.mark.parametrize("mean", MEANS)
def test_the_parts_of_the_evidence_add_up(mean):
    net, x, y, _ = CASES[3].build()
    prior, likelihood = hyperparameters("layerwise/scalar", 3)
    laplace = sparse_laplace(net, x, y, prior, likelihood, mean, [1, 4])
    parts = evidence(laplace)
    assert parts.value == pytest.approx(laplace.log_marginal_likelihood().item(), rel=1e-12)
    assert parts.trace_term > parts.left_out > 0
    assert "(left out)" in str(parts)
    exact = evidence(make_laplace(net, x, y, prior, likelihood, "weight", mean))
    assert exact.trace_term == exact.left_out == exact.standard_error == 0
    assert parts.value < exact.value


def test_an_unknown_complement_is_refused():
    with pytest.raises(ValueError, match='complement: expected "fitted" or "prior"'):
        Sparse(complement="none")
