"""Training ends where the formulas say: ridge regression, and maxima of the evidence."""

import copy

import gpytorch
import pytest
import torch
from small_sets import mlp, waves

from lingp.likelihoods import Gaussian
from lingp.models import LinearizedGP
from lingp.priors import Isotropic, Layerwise
from lingp.training import (
    EvidenceTrainer,
    TrainingPlan,
    effective_parameters,
    hyperparameter_step,
    penalty,
    train_with_evidence,
)


def lbfgs(parameters):
    return torch.optim.LBFGS(
        parameters, line_search_fn="strong_wolfe", tolerance_grad=1e-12, tolerance_change=0.0
    )


def test_four_outputs_have_the_ridge_solution_of_noise_times_precision():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(30, 3, generator=g, dtype=torch.float64)
    Y = torch.randn(30, 4, generator=g, dtype=torch.float64)
    noise, precision = 0.3, 2.5
    torch.manual_seed(0)
    found = train_with_evidence(
        torch.nn.Linear(3, 4).double(),
        X,
        Y,
        likelihood=Gaussian(noise),
        prior=precision,
        plan=TrainingPlan(steps=6, updates=0, optimizer=lbfgs),
        progress=False,
    )
    A = torch.cat([X, torch.ones(30, 1, dtype=X.dtype)], 1)

    def ridge(delta):
        return torch.linalg.solve(A.T @ A + delta * torch.eye(4, dtype=X.dtype), A.T @ Y)

    weights = torch.cat([found.net.weight.T, found.net.bias.unsqueeze(0)])
    # conditioning of a few; L-BFGS stops at gradients of 1e-12
    torch.testing.assert_close(weights, ridge(noise * precision), rtol=1e-9, atol=1e-9)
    assert (weights - ridge(4 * noise * precision)).abs().max() > 1e-2
    assert found.likelihood.noise.item() == pytest.approx(noise, rel=1e-12)


def test_ridge_solution_moves_with_the_hyperparameters():
    X, Y = waves(30, outputs=4)
    trainer = EvidenceTrainer(
        torch.nn.Linear(1, 4).double(), X, Y, plan=TrainingPlan(40, every=20, optimizer=lbfgs)
    )
    for _ in range(39):
        trainer.step()
    model = trainer.model
    delta = float(model.likelihood.noise * model.prior.precision)
    assert len(trainer.history) == 1
    assert delta != 1.0
    A = torch.cat([X, torch.ones_like(X)], 1)
    expected = torch.linalg.solve(A.T @ A + delta * torch.eye(2, dtype=X.dtype), A.T @ Y)
    torch.testing.assert_close(model.network.weight[:, 0], expected[0], rtol=1e-8, atol=1e-9)


def test_gradients_at_the_trained_network_are_finite_differences():
    X, Y = waves(outputs=2)
    found = train_with_evidence(
        mlp(1, 5, 2), X, Y, prior=Layerwise(1.0), steps=60, updates=2, progress=False
    )
    gp = found.gp
    raws = [raw for _, raw in gp.named_hyperparameters()]
    gradients = torch.autograd.grad(gp.log_marginal_likelihood(), raws)
    h = 1e-5
    for raw, gradient in zip(raws, gradients, strict=True):
        for i in range(raw.numel()):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    raw.view(-1)[i] += sign * h
                values.append(float(gp.log_marginal_likelihood()))
                with torch.no_grad():
                    raw.view(-1)[i] -= sign * h
            # second order: h² of a third derivative of order N, and rounding 1e-13 / h
            assert (values[0] - values[1]) / (2 * h) == pytest.approx(
                float(gradient.view(-1)[i]), rel=1e-6, abs=1e-6
            )


@pytest.mark.filterwarnings("ignore::lingp.inference.factorize.RoundingWarning")
def test_past_the_rounding_limit_gradients_of_several_layers_are_finite_differences():
    X, Y = waves(8)
    likelihood, prior = Gaussian(1e-16), Layerwise(1.0)
    gp = LinearizedGP(mlp(1, 4, 1), likelihood, prior=prior, inference="function_space")
    gp.fit(X, Y, progress=False)
    determinant = lambda: gp.laplace.solution().posterior.log_determinant()  # noqa: E731
    gradient = torch.autograd.grad(determinant(), prior.raw_precision)[0]
    for i in range(4):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                prior.raw_precision[i] += sign * 1e-4
                values.append(determinant().item())
                prior.raw_precision[i] -= sign * 1e-4
        assert (values[0] - values[1]) / 2e-4 == pytest.approx(gradient[i].item(), abs=1e-6)


@pytest.mark.parametrize("sizes", [(1, 2), (1, 6, 2)], ids=["linear", "hidden layer"])
@pytest.mark.parametrize("prior", [Isotropic, Layerwise])
def test_fixed_point_and_gradient_ascent_have_one_optimum(sizes, prior):
    X, Y = waves(outputs=2)
    trained = train_with_evidence(mlp(*sizes), X, Y, steps=200, updates=2, progress=False)
    ends = []
    for method in ("mackay", "l-bfgs"):
        likelihood, own = Gaussian([0.3, 0.3]), prior(1.0)
        step = hyperparameter_step(
            trained.net,
            X,
            Y,
            likelihood=likelihood,
            prior=own,
            method=method,
            tolerance=1e-10,
            max_evaluations=2000,
        )
        values = torch.cat([own.raw_precision.reshape(-1), likelihood.raw_noise.reshape(-1)])
        ends.append((step.evidence, values.detach()))
    # a gradient of 1e-10 N over curvatures of order one
    assert ends[0][0] == pytest.approx(ends[1][0], abs=1e-8)
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=0, atol=1e-7)


def test_training_by_either_method_ends_at_one_optimum():
    X, Y = waves(40)
    ends = []
    for method in ("mackay", "l-bfgs"):
        plan = TrainingPlan(steps=16, updates=16, optimizer=lbfgs, method=method)
        found = train_with_evidence(mlp(1, 1), X, Y, plan=plan, progress=False)
        weights = torch.cat([p.detach().reshape(-1) for p in found.net.parameters()])
        ends.append((found.history[-1].evidence, weights))
    # hyperparameter steps stop at 1e-3 nats per row of gradient: squared in the evidence
    assert ends[0][0] == pytest.approx(ends[1][0], abs=1e-3)
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=1e-3, atol=1e-3)


def test_effective_parameters_are_the_trace_of_the_dense_matrices():
    X, Y = waves(outputs=2)
    net = mlp(1, 4, 2)
    gp = LinearizedGP(net, Gaussian(0.2), prior=Layerwise(0.7)).fit(X, Y, progress=False)
    J = torch.cat(
        [
            torch.cat([g.reshape(-1) for g in torch.autograd.grad(f, net.parameters())])
            for row in X
            for f in (net(row)[0], net(row)[1])
        ]
    ).reshape(2 * len(X), -1)
    squared = J @ J.T / (0.2 * 0.7)
    expected = torch.trace(torch.linalg.solve(torch.eye(len(squared)).double() + squared, squared))
    assert effective_parameters(gp) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("make", [lambda: Isotropic(3.0, mean=0.5), lambda: Layerwise(2.0)])
def test_penalty_is_minus_the_log_prior(make):
    net, prior = mlp(1, 3, 2), make()
    gp = LinearizedGP(net, "gaussian", prior=prior)
    theta = gp.linearized.weights()
    variances = torch.cat(
        [
            v.expand(s.stop - s.start)
            for v, s in zip(prior.variances(), gp.linearized.parameter_slices, strict=True)
        ]
    )
    normal = torch.distributions.Normal(prior.mean.expand_as(theta), variances.sqrt())
    at_mean = normal.log_prob(prior.mean.expand_as(theta)).sum()
    expected = at_mean - normal.log_prob(theta).sum()
    torch.testing.assert_close(penalty(net, prior), expected, rtol=1e-12, atol=1e-12)


def test_penalty_of_another_network_or_without_one_is_refused():
    prior = Isotropic(1.0)
    with pytest.raises(RuntimeError, match="isn't bound"):
        penalty(mlp(1, 2), prior)
    LinearizedGP(mlp(1, 3, 1), "gaussian", prior=prior)
    with pytest.raises(ValueError, match=r"no parameter '2.weight'"):
        penalty(torch.nn.Sequential(torch.nn.Linear(1, 3)), prior)


def test_a_hyperparameter_that_is_fixed_stays_and_a_hyperprior_counts():
    X, Y = waves()
    trained = train_with_evidence(mlp(1, 5, 1), X, Y, steps=100, updates=1, progress=False)
    likelihood, prior = Gaussian(0.5), Isotropic(1.0)
    likelihood.raw_noise.requires_grad_(False)
    plain = copy.deepcopy(prior)
    hyperparameter_step(trained.net, X, Y, likelihood=likelihood, prior=plain)
    assert float(likelihood.noise) == pytest.approx(0.5)
    prior.register_prior("narrow", gpytorch.priors.NormalPrior(2.0, 1e-3), "raw_precision")
    hyperparameter_step(trained.net, X, Y, likelihood=likelihood, prior=prior)
    assert float(plain.raw_precision) < 1.0
    # a gradient of N nats at most over a curvature of 1e6
    assert float(prior.raw_precision) == pytest.approx(2.0, abs=1e-3)
