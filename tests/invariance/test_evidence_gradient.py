"""Gradients of the evidence in parameters of the inputs."""

import copy
import math

import pytest
import torch
from augmented_cases import CASES, Shift, evidence, problem, vectors
from torch import nn
from torch.func import functional_call, jacrev

from lingp import LinearizedGP
from lingp.likelihoods import Gaussian
from lingp.priors import Diagonal, Isotropic, Layerwise, UnitWise
from lingp.training import (
    Augmented,
    Composed,
    InputLearner,
    InputScale,
    RandomAffine,
    RandomRotation,
    evidence_gradient,
    train_with_evidence,
)

STEP = 1e-5  # differences of second order are then off by 1e-10 relative, rounding by as much


def differences(net, *rest):
    """Central differences of LinearizedGP's evidence in the augmentation's parameters."""
    found = {}
    for name, p in net.augmentation.named_parameters():
        found[name] = torch.zeros_like(p)
        for i in range(p.numel()):
            ends = []
            for sign in (1, -1):
                moved = copy.deepcopy(net)
                dict(moved.augmentation.named_parameters())[name].view(-1)[i] += sign * STEP
                ends.append(evidence(moved, *rest))
            found[name].view(-1)[i] = (ends[0] - ends[1]) / (2 * STEP)
    return found


@pytest.mark.parametrize("kind", ["one output", "three outputs", "labels"])
@pytest.mark.parametrize(
    ("case", "num_data"),
    [*((case, 6) for case in CASES), ("composed", 80), ("rotation", 80)],  # P is 31 to 95
)
def test_the_gradient_is_that_of_the_evidence(case, kind, num_data):
    net, x, y, likelihood = problem(case, kind, num_data)
    prior = Layerwise(torch.tensor([0.7, 1.3, 0.5, 2.0]))
    found = evidence_gradient(
        net, x, y, likelihood=likelihood, prior=prior, block_size=None if num_data == 6 else 17
    )
    assert found.evidence == pytest.approx(evidence(net, x, y, likelihood, prior), rel=1e-11)
    expected = differences(net, x, y, likelihood, prior)
    assert found.gradients.keys() == expected.keys()
    size = max(g.abs().max() for g in expected.values()).item()
    assert size > 0.1  # nats, so that there is something to compare
    for name, g in expected.items():
        torch.testing.assert_close(found.gradients[name], g, rtol=1e-6, atol=1e-7 * size)


@pytest.mark.parametrize("kind", [UnitWise, Diagonal])
@pytest.mark.parametrize(("case", "num_data"), [("rotation", 6), ("rotation", 80)])
def test_every_prior_has_the_gradient_of_the_evidence(case, num_data, kind):
    net, x, y, likelihood = problem(case, "labels", num_data)
    prior = kind(0.7)
    evidence_gradient(net, x, y, likelihood=likelihood, prior=prior)  # binds the prior
    with torch.no_grad():
        prior.raw_precision += torch.linspace(-1, 1, prior.raw_precision.numel())
    found = evidence_gradient(net, x, y, likelihood=likelihood, prior=prior)
    assert found.evidence == pytest.approx(evidence(net, x, y, likelihood, prior), rel=1e-11)
    expected = differences(net, x, y, likelihood, prior)["log_max_angle"]
    torch.testing.assert_close(found.gradients["log_max_angle"], expected, rtol=1e-6, atol=1e-7)


def test_the_average_is_of_outputs_and_jacobians():
    net, x, y, likelihood = problem("rotation", "three outputs", 5)
    noise = torch.tensor([-0.75, -0.25, 0.25, 0.75])  # the middles of four strata
    turned = torch.stack([net.augmentation(x, noise[s].double().expand(5, 1)) for s in range(4)])
    weights = dict(net.net.named_parameters())

    def outputs(weights):
        return torch.stack([functional_call(net.net, weights, (t,)) for t in turned]).mean(0)

    torch.testing.assert_close(net.eval()(x), outputs(weights))
    jacobian = torch.cat([j.flatten(2) for j in jacrev(outputs)(weights).values()], 2)
    gp = LinearizedGP(net, likelihood, prior=1.0).fit(x, y, progress=False)
    assert gp.laplace.training.num_parameters == jacobian.shape[2]  # no angle among the weights
    phi = jacobian.flatten(0, 1) / math.sqrt(0.3)
    expected = torch.logdet(torch.eye(len(phi)).double() + phi @ phi.mT).item()
    assert gp.evidence().log_determinant == pytest.approx(expected, rel=1e-10)


def test_images_turn_by_the_angle():
    x = torch.rand(1, 2, 5, 5, dtype=torch.float64)
    rotation = RandomRotation(90.0).double()
    quarter = rotation(x, torch.ones(1, 1, dtype=torch.float64))
    torch.testing.assert_close(quarter, x.rot90(1, (2, 3)), atol=1e-6, rtol=0)
    # the affine map with rotation alone is the same, also where pixels aren't square
    x = torch.rand(3, 1, 4, 7, dtype=torch.float64)
    noise = torch.tensor([[-0.4], [0.1], [1.0]]).double()
    affine = RandomAffine([1e-30, 1e-30, math.pi / 2, 1e-30, 1e-30, 1e-30]).double()
    torch.testing.assert_close(affine(x, noise.expand(3, 6)), rotation(x, noise))
    half = rotation(x, 2 * torch.ones(3, 1).double())
    torch.testing.assert_close(half, x.flip(2, 3), atol=1e-6, rtol=0)


def test_blocks_bound_the_evidence_and_cover_the_likelihood():
    net, x, y, likelihood = problem("scale", "labels", 24)
    options = {"likelihood": likelihood, "prior": Isotropic(0.5)}
    exact = evidence_gradient(net, x, y, **options)
    bounds = [
        evidence_gradient(net, x, y, method="blocks", block_size=m, num_blocks=None, **options)
        for m in (1, 6, 12, 24)
    ]
    values = [b.evidence for b in bounds]
    assert values[0] < values[1] < values[2] < values[3]
    assert values[3] == pytest.approx(exact.evidence, rel=1e-12)
    torch.testing.assert_close(bounds[3].gradients, exact.gradients)


def test_blocks_are_repeatable_and_leave_global_numbers_alone():
    net, x, y, likelihood = problem("scale", "labels", 24)
    state = torch.get_rng_state()
    found = [
        evidence_gradient(
            net,
            x,
            y,
            likelihood=likelihood,
            prior=Isotropic(0.5),
            method="blocks",
            block_size=3,
            generator=torch.Generator().manual_seed(seed),
        ).evidence
        for seed in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("training", [True, False])
def test_network_and_modes_stay(training):
    net, x, y, likelihood = problem("composed", "labels", 12)
    net.train(training)
    before = copy.deepcopy(net.state_dict())
    prior = Isotropic(0.5)
    evidence_gradient(net, x, y, likelihood=likelihood, prior=prior)
    assert net.training == net.net[0].training == training
    assert all(p.grad is None for p in net.parameters())
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    InputLearner().step(net, x, y, likelihood=likelihood, prior=prior)
    moved = [n for n, v in net.state_dict().items() if not torch.equal(v, before[n])]
    assert moved
    assert all(name.startswith("augmentation.") for name in moved)
    assert net.training == training
    assert not any(p.requires_grad for p in net.augmentation.parameters())


def test_only_what_is_learnable_moves():
    fixed = InputScale(3, learnable=False)
    net, x = vectors(1, Composed(fixed, Shift()), 8)
    assert net.learnable == ("augmentations.1.log_size",)
    found = evidence_gradient(
        net, x, x[:, :1], likelihood=Gaussian(noise=0.3), prior=Isotropic(1.0)
    )
    assert list(found.gradients) == ["augmentations.1.log_size"]
    InputLearner().step(net, x, x[:, :1], likelihood=Gaussian(noise=0.3), prior=Isotropic(1.0))
    assert torch.equal(fixed.log_scale, torch.zeros(3).double())


def test_records_print():
    net, x, y, likelihood = problem("composed", "labels", 6)
    step = InputLearner().step(net, x, y, likelihood=likelihood, prior=Isotropic(0.5))
    assert str(step).startswith(f"evidence about {step.evidence:.6g}, 0.scale = [")
    assert "RandomRotation(max_angle=5)" in str(Augmented(nn.Flatten(), RandomRotation()))


def test_noise_is_even_in_evaluation_and_fills_the_range_in_training():
    net = Augmented(nn.Linear(3, 1), Shift(), 4)
    like = torch.zeros(1)
    still = net.eval().noise(5, like)
    assert torch.equal(still, net.noise(5, like))
    assert torch.equal(still[0], still[4])
    first = still[0, :, 0]
    torch.testing.assert_close(first, torch.tensor([-0.75, -0.25, 0.25, 0.75]))
    net.train()
    many = torch.cat([net.noise(25, like) for _ in range(40)])  # (1000, 4, 3)
    assert int(net.count) == 1000
    assert many.abs().max() <= 1
    strata = ((many[..., 0] + 1) * 2).floor()
    assert torch.equal(strata, torch.arange(4.0).expand(1000, 4))  # one draw in each quarter
    for k in range(3):
        u = (many[..., k].flatten().sort().values + 1) / 2
        even = (torch.arange(4000) + 0.5) / 4000
        assert (u - even).abs().max() < 0.01  # random numbers: 0.02
    again = Augmented(nn.Linear(3, 1), Shift(), 4).train()
    assert torch.equal(torch.cat([again.noise(500, like) for _ in range(2)]), many)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes(dtype):
    net, x, y, likelihood = problem("rotation", "labels", 8)
    exact = evidence_gradient(net, x, y, likelihood=likelihood, prior=Isotropic(0.5))
    net = net.to(dtype)
    found = evidence_gradient(
        net, x.to(dtype), y, likelihood=likelihood, prior=Isotropic(0.5), dtype=dtype
    )
    assert found.gradients["log_max_angle"].dtype == dtype
    # a sum of 24 terms of size 1, at the rounding of the dtype
    assert found.evidence == pytest.approx(exact.evidence, rel=100 * torch.finfo(dtype).eps)


def test_bad_input_is_explained():
    net, x, y, likelihood = problem("scale", "labels", 9)
    options = {"likelihood": likelihood, "prior": Isotropic(1.0)}
    with pytest.raises(TypeError, match="net: got Sequential; expected an Augmented"):
        evidence_gradient(net.net, x, y, **options)
    fixed = Augmented(nn.Linear(3, 3), InputScale(3, learnable=False))
    with pytest.raises(ValueError, match="InputScale is learnable"):
        evidence_gradient(fixed, x, y, **options)
    with pytest.raises(ValueError, match="X and y: 9 rows of inputs, but 8 targets"):
        evidence_gradient(net, x, y[:8], **options)
    with pytest.raises(TypeError, match="y: missing, X is list"):
        evidence_gradient(net, [(x, y)], None, **options)
    with pytest.raises(ValueError, match='method: expected "exact" or "blocks"'):
        evidence_gradient(net, x, y, method="kron", **options)
    with pytest.raises(ValueError, match="max_angle: expected finite positive"):
        RandomRotation(0.0)
    with pytest.raises(ValueError, match="ranges: expected one number or six"):
        RandomAffine([0.1, 0.2])
    with pytest.raises(ValueError, match="scale: expected one number or 3"):
        InputScale(3, [1.0, 2.0])
    with pytest.raises(ValueError, match="has 2 inputs, but this InputScale is for 3"):
        net(x[:, :2])
    with pytest.raises(ValueError, match="expected images"):
        Augmented(nn.Linear(3, 1), RandomRotation())(torch.zeros(2, 3))
    with pytest.raises(TypeError, match="augmentation: got Linear"):
        Augmented(nn.Linear(3, 1), nn.Linear(3, 3))
    with pytest.raises(ValueError, match="learning_rate"):
        InputLearner(learning_rate=0.0)
    with pytest.raises(ValueError, match="refresh: expected a positive number, got 0"):
        InputLearner(refresh=0)
    with pytest.raises(ValueError, match="sample_weight"):
        train_with_evidence(
            net, x, y, sample_weight=torch.ones(9), input_learner=InputLearner(), **options
        )
    net.net[0].weight.data[0, 0] = math.nan
    with pytest.raises(FloatingPointError, match=r"net\.0\.weight is not finite"):
        InputLearner().step(net, x, y, **options)
