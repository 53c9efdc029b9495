"""Parameters of inputs that are learned by following the gradients of the evidence."""

import copy
import math

import pytest
import torch
from augmented_cases import problem
from torch import nn

from lingp.invariance.input_model import InputModel
from lingp.priors import Isotropic
from lingp.training import (
    Augmentation,
    Augmented,
    InputLearner,
    InputScale,
    TrainingPlan,
    evidence_gradient,
    train_with_evidence,
)


def test_irrelevant_inputs_get_small_scales():
    torch.manual_seed(0)
    x = torch.randn(120, 4)
    y = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2] + 0.1 * torch.randn(120, 1)
    net = Augmented(nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1)), InputScale(4))
    learner = InputLearner(learning_rate=0.2, every=5)
    found = train_with_evidence(
        net, x, y, steps=300, updates=4, input_learner=learner, progress=False
    )
    scale = found.net.values()["scale"]
    assert scale[2:].max() < 0.3 * scale[:2].min()
    assert torch.equal(net.augmentation.log_scale, torch.zeros(4))  # a copy was trained
    assert len(learner.history) == 60
    assert learner.history[-1].values["scale"] == pytest.approx(scale.tolist())


class Rotation(Augmentation):
    """Of points in the plane, by an angle uniform in ± exp(log_angle)."""

    def __init__(self, angle):
        super().__init__()
        self.log_angle = nn.Parameter(torch.tensor(angle).log())

    @property
    def num_noises(self):
        return 1

    def forward(self, x, noise):
        angle = self.log_angle.exp() * noise[:, 0]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([cos * x[:, 0] - sin * x[:, 1], sin * x[:, 0] + cos * x[:, 1]], -1)


@pytest.mark.parametrize("label", ["radius", "angle"])
def test_the_range_of_a_rotation_is_learned(label):
    """Wide where labels are of the radius, narrow where they turn with the points."""
    generator = torch.Generator().manual_seed(0)
    angle = math.tau * torch.rand(100, generator=generator)
    radius = 0.5 + torch.rand(100, generator=generator)
    x = radius.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], 1)
    y = (radius > 1).long() if label == "radius" else (2 * angle / math.pi).long() % 2
    torch.manual_seed(0)
    net = Augmented(nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 2)), Rotation(1.0), 8)
    found = train_with_evidence(
        net,
        x,
        y,
        likelihood="categorical",
        steps=400,
        updates=4,
        input_learner=InputLearner(learning_rate=0.2, every=10, start=100),
        progress=False,
    )
    learned = float(found.net.augmentation.log_angle.exp())
    if label == "radius":
        assert learned > 1.5
    else:
        assert learned < 0.7


def test_the_learner_goes_on_from_its_state():
    net, x, y, likelihood = problem("scale", "labels", 30)
    options = {"likelihood": likelihood, "prior": Isotropic(0.5)}
    whole, first, second = (InputLearner(block_size=5) for _ in range(3))
    one, two = net, copy.deepcopy(net)
    for _ in range(6):
        whole.step(one, x, y, **options)
    for _ in range(3):
        first.step(two, x, y, **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(3):
        second.step(two, x, y, **options)
    assert torch.equal(one.augmentation.log_scale, two.augmentation.log_scale)
    assert second.history == whole.history


class Killed(InputLearner):
    """Dies at its fourth step."""

    def step(self, *args, **options):
        if len(self.history) == 3:
            raise KeyboardInterrupt
        return super().step(*args, **options)


def test_training_goes_on_after_a_kill(tmp_path):
    net, x, y, _ = problem("scale", "labels", 30)

    def train(learner, checkpoint):
        return train_with_evidence(
            net,
            x,
            y,
            likelihood="categorical",
            plan=TrainingPlan(steps=30, updates=2, batch_size=7, checkpoint_every=4),
            checkpoint=checkpoint,
            input_learner=learner,
            progress=False,
        )

    whole = InputLearner(every=5, block_size=8)
    expected = train(whole, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(Killed(every=5, block_size=8), tmp_path / "killed")
    resumed = InputLearner(every=5, block_size=8)
    found = train(resumed, tmp_path / "killed")
    torch.testing.assert_close(found.net.state_dict(), expected.net.state_dict(), rtol=0, atol=0)
    assert resumed.history == whole.history
    assert len(whole.history) == 6


@pytest.mark.parametrize("rows", [40, 20])
def test_the_learner_estimates_evidence_and_gradient(rows):
    """Without bias: blocks that make up all rows give the exact gradient."""
    net, x, y, likelihood = problem("scale", "labels", 40)
    prior = Isotropic(0.5)
    exact = evidence_gradient(net, x, y, likelihood=likelihood, prior=prior)
    learner = InputLearner(block_size=5, num_blocks=8, curvature_rows=rows)
    model = InputModel.of(net, x, y, likelihood, prior, "all", torch.float64)
    found = learner._estimate(model, net)
    evidence, gradients = found.evidence, found.gradients
    if rows == 40:
        assert evidence == pytest.approx(exact.evidence, rel=1e-11)
        torch.testing.assert_close(gradients, exact.gradients, rtol=1e-9, atol=1e-9)
    else:  # half of the rows, counted twice
        assert evidence == pytest.approx(exact.evidence, rel=0.1)
        assert evidence != pytest.approx(exact.evidence, rel=1e-6)


def test_many_weights_take_the_bound():
    net, x, y, likelihood = problem("scale", "labels", 24)
    prior = Isotropic(0.5)
    learner = InputLearner(block_size=6, num_blocks=4, max_parameters=10)
    model = InputModel.of(net, x, y, likelihood, prior, "all", torch.float64)
    found = learner._estimate(model, net)
    evidence, gradients = found.evidence, found.gradients
    bound = evidence_gradient(
        net,
        x,
        y,
        likelihood=likelihood,
        prior=prior,
        method="blocks",
        block_size=6,
        num_blocks=4,
        generator=torch.Generator().manual_seed(0),
    )
    assert evidence == pytest.approx(bound.evidence, rel=1e-11)
    torch.testing.assert_close(gradients, bound.gradients)
