"""The loss that an optimizer sees keeps its size when hyperparameters of the likelihood move."""

from __future__ import annotations

import pytest
import torch
from small_sets import mlp, waves

from lingp.likelihoods import Categorical, Gaussian, StudentT, Tempered
from lingp.training import EvidenceTrainer, TrainingPlan

WEAK = 1e-6  # a prior precision whose penalty doesn't show in gradients


def gradients(likelihood, y, net, X, steps=3) -> torch.Tensor:
    """Of each step, (steps x P), at weights that stay; hyperparameters move after each."""
    found = []

    def still(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        optimizer.register_step_post_hook(lambda *_: found.append(torch.cat(flat(optimizer))))
        return optimizer

    def flat(optimizer):
        return [p.grad.flatten().clone() for p in optimizer.param_groups[0]["params"]]

    trainer = EvidenceTrainer(
        net,
        X,
        y,
        likelihood=likelihood,
        prior=WEAK,
        plan=TrainingPlan(steps, every=1, optimizer=still),
    )
    trainer.model.prior.requires_grad_(False)
    while not trainer.finished:
        trainer.step()
    assert trainer.history[-1].step == steps
    return torch.stack(found)


def test_gradients_of_noise_that_falls_stay():
    X, y = waves(30)
    found = gradients(Gaussian(5.0), y, mlp(1, 8, 1), X)
    torch.testing.assert_close(found[1:], found[:1].expand(2, -1), rtol=1e-4, atol=0)


def test_noise_that_rises_flattens_the_loss():
    """Scaling it up would leave the penalty thousands of times what it was."""
    X, y = waves(30)
    noise = 1e-4
    found = gradients(Gaussian(noise), y, mlp(1, 8, 1), X)
    residual = (y - mlp(1, 8, 1)(X)).detach().square().mean().item()
    ratio = (found[1] / found[0]).median().item()
    assert ratio == pytest.approx(noise / residual, rel=0.3)  # MacKay's noise counts γ too


def test_with_several_noises_the_mean_curvature_stays():
    X, y = waves(30, outputs=2)
    net = mlp(1, 8, 2)
    likelihood = Gaussian([2.0, 0.5])
    trainer = EvidenceTrainer(net, X, y, likelihood=likelihood, plan=TrainingPlan(2, every=1))
    trainer.step()
    noise = trainer.model.likelihood.noise
    flatness = trainer.state_dict()["flatness"]
    assert flatness * (1 / noise).mean().item() == pytest.approx((1 / 2 + 1 / 0.5) / 2, rel=1e-12)


@pytest.mark.parametrize("name", ["student", "tempered", "categorical"])
def test_any_parameter_of_a_likelihood_counts(name):
    X, y = waves(30)
    labels = (y > 0).long().squeeze(-1)
    likelihood, targets, net = {
        "student": (StudentT(4.0, scale=3.0), y, mlp(1, 8, 1)),
        "tempered": (Tempered(Categorical(), 3.0, learn=True), labels, mlp(1, 8, 2)),
        "categorical": (Categorical(), labels, mlp(1, 8, 2)),
    }[name]
    trainer = EvidenceTrainer(net, X, targets, likelihood=likelihood, plan=TrainingPlan(2, every=1))
    trainer.step()
    with torch.no_grad():
        f = trainer.model.network(X)
    before = likelihood.curvature_root(targets, f).dense().square().sum()
    after = trainer.model.likelihood.curvature_root(targets, f).dense().square().sum()
    flatness = trainer.state_dict()["flatness"]
    assert flatness == pytest.approx((before / after).item(), rel=1e-6)
    assert (flatness == 1) == (name == "categorical")


def test_rows_of_weight_zero_at_the_start_say_nothing():
    X, y = waves(1500)
    weight = torch.ones(1500).double()
    weight[:1100] = 0
    options = {"likelihood": Gaussian(5.0), "plan": TrainingPlan(1, every=1, batch_size=1500)}
    given = EvidenceTrainer(mlp(1, 8, 1), X, y, sample_weight=weight, **options)
    given.step()
    noise = given.model.likelihood.noise.item()
    assert given.state_dict()["flatness"] == pytest.approx(noise / 5.0, rel=1e-9)


def test_the_best_state_can_only_be_had_where_it_was_kept():
    X, y = waves(30)
    trainer = EvidenceTrainer(mlp(1, 8, 1), X, y, plan=TrainingPlan(1, every=1))
    trainer.step()
    with pytest.raises(ValueError, match="select"):
        trainer.result(select="evidence")
