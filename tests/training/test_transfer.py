"""A prior at the network's weights stays where training started."""

import copy

import pytest
import torch
from small_sets import mlp, waves
from torch import nn

from lingp.estimators import LinearizedGPRegressor
from lingp.likelihoods import Gaussian
from lingp.linearization import LinearizedNetwork
from lingp.models import LinearizedGP
from lingp.priors import Isotropic, UnitWise
from lingp.pruning import prune
from lingp.training import (
    Augmented,
    CheckpointError,
    EvidenceTrainer,
    InputLearner,
    InputScale,
    TrainingPlan,
    hyperparameter_step,
    penalty,
    train_with_evidence,
)


def lbfgs(parameters):
    return torch.optim.LBFGS(
        parameters, line_search_fn="strong_wolfe", tolerance_grad=1e-12, tolerance_change=0.0
    )


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_ridge_regression_is_towards_the_weights_of_the_start():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(12, 3, generator=g, dtype=torch.float64)
    y = torch.randn(12, 1, generator=g, dtype=torch.float64)
    net, noise, precision = mlp(3, 1, seed=4), 0.3, 25.0
    found = train_with_evidence(
        net,
        X,
        y,
        likelihood=Gaussian(noise),
        prior=Isotropic(precision, mean="network"),
        plan=TrainingPlan(steps=6, updates=0, optimizer=lbfgs),
        mean="network",
        progress=False,
    )
    A = torch.cat([X, torch.ones(12, 1, dtype=X.dtype)], 1)
    start, delta = flat(net), noise * precision
    left = A.mT @ (y.squeeze(1) - A @ start)
    expected = start + torch.linalg.solve(A.mT @ A + delta * torch.eye(4, dtype=X.dtype), left)
    # conditioning of a few; L-BFGS stops at gradients of 1e-12
    torch.testing.assert_close(flat(found.net), expected, rtol=1e-9, atol=1e-9)
    # evidence: the mode of this linear model, so that of the refitted mean, N(y | A μ0, ...)
    covariance = A @ A.mT / precision + noise * torch.eye(12, dtype=X.dtype)
    normal = torch.distributions.MultivariateNormal(A @ start, covariance)
    evidence = found.gp.log_marginal_likelihood().detach()
    torch.testing.assert_close(evidence, normal.log_prob(y.squeeze(1)), rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", [Isotropic, UnitWise])
def test_the_mean_stays_while_weights_move(kind):
    (X, y), net = waves(), mlp(1, 5, 1)
    prior = kind(1.0, mean="network")
    found = train_with_evidence(net, X, y, prior=prior, steps=60, updates=3, progress=False)
    assert (flat(found.net) - flat(net)).abs().max() > 0.1
    for held in (found.prior, found.gp.prior, copy.deepcopy(found.gp).prior):
        assert torch.equal(held.mean, flat(net))
    again = LinearizedGP(found.net, found.likelihood, prior=found.prior, mean="refit").fit(X, y)
    torch.testing.assert_close(
        again.log_marginal_likelihood(), found.gp.log_marginal_likelihood(), rtol=1e-12, atol=0
    )
    assert prior.names is None, "what was given stays as it was"


def test_a_prior_that_was_bound_elsewhere_is_at_the_start_too():
    (X, y), net = waves(), mlp(1, 5, 1)
    prior = Isotropic(mean="network").bind_to(LinearizedNetwork(mlp(1, 5, 1, seed=9)))
    found = train_with_evidence(net, X, y, prior=prior, steps=20, updates=1, progress=False)
    assert torch.equal(found.prior.mean, flat(net))
    # one that is held is not moved to another start
    second = train_with_evidence(
        found.net, X, y, prior=found.prior, steps=20, updates=1, progress=False
    )
    assert torch.equal(second.prior.mean, flat(net))


def test_own_loops_hold_the_mean_at_the_weights_it_was_first_bound_to():
    (X, y), net = waves(), mlp(1, 5, 1)
    start, prior, likelihood = flat(net), Isotropic(mean="network"), Gaussian(0.1)
    prior.bind_to(LinearizedNetwork(net))
    assert penalty(net, prior).item() == 0.0
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1
    hyperparameter_step(net, X, y, likelihood=likelihood, prior=prior)
    assert torch.equal(prior.mean, start)
    value = 0.5 * float(prior.precision) * 0.1**2 * len(start)
    assert penalty(net, prior).item() == pytest.approx(value, rel=1e-12)
    first = Isotropic(mean="network")  # not bound: the first step does it
    for _ in range(2):
        hyperparameter_step(net, X, y, likelihood=likelihood, prior=first)
        assert torch.equal(first.mean, start + 0.1)
        with torch.no_grad():
            net[0].weight += 1.0


def test_steps_of_the_inputs_hold_it_too():
    (X, y), net = waves(), Augmented(mlp(1, 5, 1), InputScale(1)).double()
    start, prior = flat(net.net), Isotropic(mean="network")
    learner = InputLearner(learning_rate=0.1, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        learner.step(net, X, y, likelihood=Gaussian(0.1), prior=prior)
        assert torch.equal(prior.mean, start)
        with torch.no_grad():
            net.net[0].weight += 1.0


def train(path, net, steps_now=40):
    X, y = waves()
    trainer = EvidenceTrainer(
        net, X, y, prior=Isotropic(1.0, mean="network"), plan=TrainingPlan(40, every=10)
    )
    if path.exists():
        trainer.load(path)
    while trainer.steps_taken < steps_now:
        trainer.step()
    trainer.save(path)
    return trainer.result()


def test_training_goes_on_from_a_checkpoint_to_the_same_bits(tmp_path):
    whole = train(tmp_path / "whole", mlp(1, 5, 1))
    train(tmp_path / "part", mlp(1, 5, 1), 17)
    resumed = train(tmp_path / "part", mlp(1, 5, 1))
    assert torch.equal(flat(resumed.net), flat(whole.net))
    assert torch.equal(resumed.prior.mean, flat(mlp(1, 5, 1)))
    with pytest.raises(CheckpointError, match="its prior is"):
        train(tmp_path / "part", mlp(1, 5, 1, seed=1))


def test_a_pruned_network_has_the_mean_of_the_weights_that_are_left():
    (X, y), net = waves(), mlp(1, 6, 1)
    gp = LinearizedGP(net, Gaussian(0.05), prior=Isotropic(1.0, mean="network"), mean="refit")
    pruned = prune(gp.fit(X, y, progress=False), "units", until=3, progress=False)
    kept = torch.cat([m.flatten() for m in pruned.masks.values()])
    assert kept.sum() == 10
    assert torch.equal(pruned.gp.prior.mean, flat(net)[kept])
    assert torch.equal(gp.prior.mean, flat(net))


def test_estimators_take_it():
    X, y = waves(40, dtype=torch.float32)
    module = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
    for prefit in (True, False):
        model = LinearizedGPRegressor(
            module=module,
            prefit=prefit,
            mean="refit",
            prior=Isotropic(1.0, mean="network"),
            steps=20,
            standardize=False,
        ).fit(X.numpy(), y.squeeze(1).numpy())
        mean = model.gp_.prior.mean
        torch.testing.assert_close(mean, flat(module).double(), rtol=0, atol=0)
        assert model.gp_.laplace.prior_deviation().any() == (not prefit)
