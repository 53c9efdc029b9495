"""Training that goes wrong is stopped, with the reason, at the last good state."""

import math
import warnings

import pytest
import torch
from small_sets import mlp, waves
from torch import nn

from lingp.inference.factorize import OutOfRangeError
from lingp.likelihoods import CorrelatedGaussian, Gaussian
from lingp.models import LinearizedGP
from lingp.priors import Isotropic, Layerwise
from lingp.training import (
    EvidenceTrainer,
    TrainingFailedError,
    TrainingPlan,
    TrainingStoppedWarning,
    hyperparameter_step,
    train_with_evidence,
)
from lingp.training.faults import hyperparameter_fault
from lingp.training.hyperparameter_step import look


def stopped(match, *args, likelihood="gaussian", prior=None, **plan):
    with pytest.warns(TrainingStoppedWarning, match=match):
        found = train_with_evidence(
            *args,
            plan=TrainingPlan(**plan),
            likelihood=likelihood,
            prior=prior,
            progress=False,
        )
    assert found.stopped is not None
    assert math.isfinite(found.gp.evidence().value)
    assert all(p.isfinite().all() for p in found.net.parameters())
    return found


class TurnsBad(torch.optim.SGD):
    """Descends for some steps, and then does something to the weights."""

    def __init__(self, parameters, after, harm):
        super().__init__(parameters, lr=0.05)
        self.left, self.harm = after, harm

    def step(self, closure):
        loss = super().step(closure)
        self.left -= 1
        if self.left < 0:
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    p.copy_(self.harm(p))
        return loss


def turns_bad(after, harm):
    return lambda parameters: TurnsBad(parameters, after, harm)


def test_a_learning_rate_of_ten_fails_with_the_numbers():
    X, Y = waves(40, dtype=torch.float32)
    net = mlp(1, 20, 1, dtype=torch.float32)
    with pytest.raises(TrainingFailedError, match=r"untrained network.*lower the learning rate"):
        train_with_evidence(net, X, Y, steps=80, learning_rate=10.0, progress=False)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_constant_target_stops(outputs):
    X, Y = waves(40, outputs=outputs)
    Y[:, -1] = 5.0
    likelihood = Gaussian([1.0] * outputs)
    found = stopped(
        f"all targets{' of output 1' if outputs == 2 else ''} are the same",
        mlp(1, 10, outputs),
        X,
        Y,
        likelihood=likelihood,
        steps=200,
        learning_rate=0.05,
    )
    assert (found.likelihood.noise > 1e-3).all()


def test_all_targets_zero_stops():
    X, Y = waves(40)
    found = stopped("are the same", mlp(1, 10, 1), X, 0 * Y, steps=200)
    assert float(found.likelihood.noise.detach()) > 1e-3


def test_data_fitted_to_rounding_stop():
    X, _ = waves(40)
    Y = 2 * X + 1
    lbfgs = lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe")  # noqa: E731
    found = stopped("fitted to rounding", mlp(1, 1), X, Y, optimizer=lbfgs, steps=40, updates=20)
    assert found.history  # there were good states before


def test_correlated_noise_that_vanishes_in_one_direction_is_seen():
    X, Y = waves(20, outputs=2)
    for off, fault in ((0.9, False), (1 - 1e-13, True)):
        likelihood = CorrelatedGaussian([[1.0, off], [off, 1.0]])
        gp = LinearizedGP(mlp(1, 2), likelihood).fit(X, Y, progress=False)
        found = hyperparameter_fault(gp.laplace, look(gp))
        assert ("fitted to rounding" in str(found)) == fault


def test_duplicated_rows_are_no_fault():
    X, Y = waves(20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = train_with_evidence(
            mlp(1, 5, 1), X.repeat(3, 1), Y.repeat(3, 1), steps=100, updates=4, progress=False
        )
    assert found.stopped is None
    assert len(found.history) == 4


def test_a_loss_that_is_no_number_goes_back_to_the_last_good_state():
    X, Y = waves(20)
    bad = turns_bad(15, lambda p: p * float("nan"))
    found = stopped("the loss became nan", mlp(1, 4, 1), X, Y, steps=20, every=5, optimizer=bad)
    plan = TrainingPlan(steps=15, every=5, optimizer=turns_bad(99, None))
    until = train_with_evidence(mlp(1, 4, 1), X, Y, plan=plan, progress=False)
    assert found.step == 15
    assert len(found.history) == 3
    for p, q in zip(found.net.parameters(), until.net.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(found.likelihood.noise, until.likelihood.noise)


def test_weights_that_are_no_numbers_at_a_hyperparameter_step():
    X, Y = waves(20)
    bad = turns_bad(9, lambda p: p / 0)  # after the last loss before the step
    found = stopped("NaN or infinite values", mlp(1, 4, 1), X, Y, steps=20, every=5, optimizer=bad)
    assert found.step == 5


def test_no_good_state_at_all_is_an_error():
    X, Y = waves(20)
    bad = turns_bad(2, lambda p: p * float("nan"))
    plan = TrainingPlan(steps=20, updates=2, optimizer=bad)
    with pytest.raises(TrainingFailedError, match="no good state before"):
        train_with_evidence(mlp(1, 4, 1), X, Y, plan=plan, progress=False)


def test_finite_but_thrown_away_weights_stop_at_the_second_look():
    X, Y = waves(20)
    bad = turns_bad(12, lambda p: torch.full_like(p, 100.0))
    found = stopped(
        "those of the untrained network", mlp(1, 4, 1), X, Y, steps=40, every=5, optimizer=bad
    )
    assert found.step == 10
    assert "at step 20 of 40" in found.stopped


def test_a_network_that_recovers_goes_on():
    X, Y = waves(20)
    trainer = EvidenceTrainer(mlp(1, 4, 1), X, Y, plan=TrainingPlan(30, every=10))
    for _ in range(19):
        trainer.step()
    weights = [p.detach().clone() for p in trainer.model.weights]
    with torch.no_grad():
        trainer.model.weights[-1].add_(1e3)
    trainer.step()
    assert len(trainer.history) == 1
    assert trainer.stopped is None
    with torch.no_grad():
        for p, w in zip(trainer.model.weights, weights, strict=True):
            p.copy_(w)
    while not trainer.finished:
        trainer.step()
    assert trainer.stopped is None
    assert [s.step for s in trainer.history] == [10, 30]


def test_a_precision_that_runs_to_infinity_stops():
    X, Y = waves(20)
    lbfgs = lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe")  # noqa: E731
    net = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        net.weight.fill_(1e-6)
    found = stopped(
        "ran to infinity.*standardise", net, 1e6 * X, Y, optimizer=lbfgs, steps=8, updates=4
    )
    assert float(found.prior.precision.detach()) < 1e8


def test_a_precision_that_runs_to_zero_stops():
    # labels that a step separates, and a network that is sure of them
    X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(1)
    y = (X[:, 0] > 0).double()
    net = nn.Linear(1, 1).double()
    with torch.no_grad():
        net.weight.fill_(2e3)
        net.bias.zero_()
    found = stopped(
        "ran to 0",
        net,
        X,
        y,
        likelihood="bernoulli",
        prior=1e-7,
        steps=4,
        updates=1,
        learning_rate=1e-3,
    )
    assert float(found.prior.precision.detach()) > 1e-8


def test_some_of_many_precisions_may_run_off_and_are_counted():
    X, Y = waves(20)
    trained = train_with_evidence(mlp(1, 4, 1), X, Y, steps=100, updates=2, progress=False).net
    with torch.no_grad():
        trained[0].bias.fill_(1e-9)
        trained[2].bias.fill_(1e-9)
    prior = Layerwise(1.0)
    step = hyperparameter_step(
        trained, X, Y, likelihood=Gaussian(0.1), prior=prior, method="mackay", tolerance=1e-12
    )
    assert step.at_bounds == 2
    assert prior.precision.detach()[[1, 3]].tolist() == pytest.approx([1e8, 1e8])


def test_an_evidence_out_of_range_leaves_the_hyperparameters():
    X, Y = waves(20)
    net, likelihood, prior = mlp(1, 4, 1), Gaussian(1e-300), Isotropic(1e-300)
    with pytest.raises(OutOfRangeError):
        hyperparameter_step(net, X, Y, likelihood=likelihood, prior=prior)
    assert float(likelihood.noise.detach()) == pytest.approx(1e-300)
    with pytest.raises(TrainingFailedError):
        train_with_evidence(net, X, Y, likelihood=likelihood, prior=prior, steps=2, progress=False)
