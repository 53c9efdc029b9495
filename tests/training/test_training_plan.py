"""When training does what, which state it keeps, and what it records."""

import math

import pytest
import torch
from small_sets import mlp, waves

from lingp.training import (
    EvidenceTrainer,
    History,
    TrainingPlan,
    hyperparameter_step,
    train_with_evidence,
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"steps": 2400}, range(100, 2401, 100)),
        ({"steps": 100, "updates": 3, "burn_in": 50}, [50, 75, 100]),
        ({"steps": 100, "every": 30}, [30, 60, 90, 100]),
        ({"steps": 100, "every": 30, "burn_in": 55}, [55, 85, 100]),
        ({"steps": 100, "updates": 1}, [100]),
        ({"steps": 3}, [1, 2, 3]),
        ({"epochs": 5, "every": 8}, [8, 16, 20]),
        ({"steps": 7, "updates": 0}, []),
    ],
)
def test_hyperparameters_move_when_the_plan_says(options, expected):
    plan = TrainingPlan(**options)
    assert plan.hyperparameter_steps(plan.num_steps(4)) == set(expected)


def test_dear_hyperparameter_steps_are_fewer_and_batches_have_more_steps():
    plan = TrainingPlan()
    assert (plan.num_steps(1), plan.num_steps(4)) == (2400, 10_000)
    assert plan.hyperparameter_steps(2400, flops=1e10) == set(range(300, 2401, 300))


def test_hyperparameters_are_held_where_moving_them_loses_evidence():
    moved, held = (worsening(steps=100, every=20, hold=hold) for hold in (False, True))
    evidences = [step.evidence for step in moved.history]
    assert max(evidences) > evidences[-1]  # it overfits
    best = max(held.history, key=lambda step: step.evidence)
    assert held.history[-1].hyperparameters == best.hyperparameters
    assert moved.history[-1].hyperparameters != best.hyperparameters
    assert held.history[-1].evidence_before == held.history[-1].evidence


def test_learning_rates_follow_a_cosine_and_the_record_has_them():
    X, Y = waves(12)
    found = train_with_evidence(
        mlp(1, 3, 1),
        X,
        Y,
        plan=TrainingPlan(20, every=5, learning_rate=(0.1, 0.02)),
        progress=False,
    )
    for step in found.history:
        share = (step.step - 1) / 20
        expected = 0.02 + 0.04 * (1 + math.cos(math.pi * share))
        assert step.learning_rate == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rate", [None, 0.03])
def test_an_optimizer_keeps_its_rate_unless_told_otherwise(rate):
    X, Y = waves(12)
    found = train_with_evidence(
        mlp(1, 3, 1),
        X,
        Y,
        plan=TrainingPlan(4, updates=1, optimizer=lambda p: torch.optim.SGD(p, lr=0.07)),
        learning_rate=rate,
        progress=False,
    )
    assert found.history[0].learning_rate == (rate or 0.07)


def worsening(**options):
    """Training whose evidence rises until noise is thrown on the weights."""
    X, Y = waves(20)

    class Noisy(torch.optim.Adam):
        taken = 0

        def step(self, closure):
            found = super().step(closure)
            self.taken += 1
            if self.taken > 60:
                g = torch.Generator().manual_seed(self.taken)
                for p in self.param_groups[0]["params"]:
                    noise = torch.randn(p.shape, generator=g, dtype=p.dtype)
                    p.data.add_(noise, alpha=0.05)
            return found

    return train_with_evidence(
        mlp(1, 6, 1),
        X,
        Y,
        plan=TrainingPlan(optimizer=Noisy, learning_rate=0.02, **options),
        mean="network",
        progress=False,
    )


def test_the_state_of_largest_evidence_is_kept():
    last = worsening(steps=100, every=20)
    best = worsening(steps=100, every=20, select="evidence")
    evidences = [s.evidence for s in best.history]
    assert [s.evidence for s in last.history] == evidences
    largest = max(range(5), key=evidences.__getitem__)
    assert largest < 4
    assert (last.step, best.step) == (100, best.history[largest].step)
    assert best.gp.evidence().value == pytest.approx(evidences[largest], rel=1e-10)
    assert last.gp.evidence().value == pytest.approx(evidences[-1], rel=1e-10)


def test_patience_ends_training_without_a_warning(recwarn):
    found = worsening(steps=400, every=20, select="evidence", patience=2)
    steps = [s.step for s in found.history]
    evidences = [s.evidence for s in found.history]
    largest = evidences.index(max(evidences))
    assert len(steps) == largest + 3 < 20
    assert found.step == steps[largest]
    assert found.stopped == "no larger evidence in 2 hyperparameter steps"
    assert not recwarn.list


def test_the_record_prints_as_a_table():
    X, Y = waves(12)
    found = train_with_evidence(mlp(1, 3, 1), X, Y, steps=4, updates=2, progress=False)
    lines = str(found.history).splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split()[:2] == ["step", "evidence"]
    assert "prior.precision" in lines[0]
    assert f"{found.history[1].evidence:.2f}" in lines[2]
    assert "state after step 4" in str(found)
    assert History.from_dicts(found.history.to_dicts()) == found.history
    alone = hyperparameter_step(found.net, X, Y, likelihood=found.likelihood, prior=found.prior)
    assert "evidence" in str(alone)
    assert alone.step is None


def test_the_loss_is_minus_the_log_joint_per_row():
    X, Y = waves(12)
    trainer = EvidenceTrainer(mlp(1, 3, 1), X, Y, prior=3.0, plan=TrainingPlan(1, updates=1))
    net = mlp(1, 3, 1)
    log_prob = torch.distributions.Normal(net(X), 1.0).log_prob(Y).sum()
    weights = sum(p.square().sum() for p in net.parameters())
    trainer.step()
    expected = (0.5 * 3.0 * weights - log_prob) / 12
    assert trainer.history[0].loss == pytest.approx(expected.item(), rel=1e-12)


def test_a_finished_training_has_no_more_steps():
    X, Y = waves(12)
    trainer = EvidenceTrainer(mlp(1, 3, 1), X, Y, plan=TrainingPlan(1, updates=1))
    trainer.step()
    assert trainer.finished
    with pytest.raises(RuntimeError, match="finished"):
        trainer.step()
