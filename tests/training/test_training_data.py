"""All kinds of data and networks go through training, and nothing of the user's is changed."""

import copy
from dataclasses import replace

import pytest
import torch
from small_sets import mlp, waves
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lingp.likelihoods import Gaussian
from lingp.priors import Isotropic
from lingp.training import EvidenceTrainer, TrainingPlan, train_with_evidence

QUICK = {"steps": 8, "updates": 2, "progress": False}


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1, 3), nn.Linear(2, 3)
        self.out = nn.Linear(3, 1)

    def forward(self, a, b):
        return self.out(torch.tanh(self.first(a) + self.second(b)))


def weights_of(found):
    return torch.cat([p.detach().reshape(-1) for p in found.net.parameters()])


def same_bits(a, b):
    values = [weights_of(a), a.prior.raw_precision, *a.likelihood.parameters()]
    others = [weights_of(b), b.prior.raw_precision, *b.likelihood.parameters()]
    return all(torch.equal(v, o) for v, o in zip(values, others, strict=True))


@pytest.mark.parametrize("container", [tuple, dict])
def test_several_inputs(container):
    torch.manual_seed(0)
    a, b, y = torch.randn(20, 1), torch.randn(20, 2), torch.randn(20, 1)
    X = (a, b) if container is tuple else {"a": a, "b": b}
    found = train_with_evidence(TwoInputs(), X, y, batch_size=7, **QUICK)
    assert found.gp.predict(X, progress=False).mean.shape == (20, 1)


def test_a_loader_is_iterated_anew_every_epoch_and_its_rows_are_counted():
    X, Y = waves(23)

    class Counting:
        epochs = 0

        def __iter__(self):
            Counting.epochs += 1
            yield from zip(X.split(5)[:4], Y.split(5)[:4], strict=True)  # drops the last three

    trainer = EvidenceTrainer(mlp(1, 3, 1), Counting(), plan=TrainingPlan(epochs=3, updates=1))
    assert (trainer.num_steps, trainer._batches.num_rows, Counting.epochs) == (12, 20, 1)
    while not trainer.finished:
        trainer.step()
    assert Counting.epochs == 1 + 3 + 1  # to count, to train, for the evidence
    assert trainer.result().gp.laplace.training.num_data == 20


def test_batches_in_order_are_steps_of_the_formula():
    X, Y = waves(12)
    net, batches = mlp(1, 3, 1), list(zip(X.split(4), Y.split(4), strict=True))
    found = train_with_evidence(
        net,
        batches,
        prior=2.0,
        likelihood=Gaussian(0.5),
        plan=TrainingPlan(steps=6, updates=0, optimizer=lambda p: torch.optim.SGD(p, lr=0.05)),
        progress=False,
    )
    own = copy.deepcopy(net)
    for step in range(6):
        x, y = batches[step % 3]
        own.zero_grad()
        log_prob = torch.distributions.Normal(own(x), 0.5**0.5).log_prob(y).sum()
        weights = sum(p.square().sum() for p in own.parameters())
        ((0.5 * 2.0 * weights - 12 / 4 * log_prob) / 12).backward()
        with torch.no_grad():
            for p in own.parameters():
                p -= 0.05 * p.grad
    for p, q in zip(found.net.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


def test_a_generator_of_batches_is_refused():
    X, Y = waves(8)
    with pytest.raises(TypeError, match="only once"):
        train_with_evidence(mlp(1, 2, 1), iter([(X, Y)]), **QUICK)


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_datasets_shuffle_without_the_global_generator(kind):
    X, Y = waves(20)
    data = TensorDataset(X, Y)
    data = data if kind == "dataset" else DataLoader(data, 8, shuffle=True)
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        ends.append(train_with_evidence(mlp(1, 3, 1), data, **QUICK))
        assert torch.equal(torch.get_rng_state(), before)
    assert same_bits(*ends)


def test_a_weight_counts_like_repeated_rows():
    X, Y = waves(10)
    counts = torch.tensor([1, 2, 1, 0, 3, 1, 0, 2, 1, 1])
    rows = torch.arange(10).repeat_interleave(counts)
    options = {"prior": 1.5, "progress": False}
    plan = TrainingPlan(steps=20, updates=2, optimizer=lambda p: torch.optim.SGD(p, lr=1e-2))
    # the loss is per row: the optimizer's steps are longer by 12 / 10 with repeated rows
    longer = replace(plan, optimizer=lambda p: torch.optim.SGD(p, lr=1.2e-2))
    weighted = train_with_evidence(mlp(1, 3, 1), X, Y, plan=plan, sample_weight=counts, **options)
    repeated = train_with_evidence(mlp(1, 3, 1), X[rows], Y[rows], plan=longer, **options)
    assert len(rows) == 12
    torch.testing.assert_close(weights_of(weighted), weights_of(repeated), rtol=1e-6, atol=1e-6)


def test_missing_targets_add_nothing():
    X, Y = waves(16, outputs=2)
    Y = Y.clone()
    Y[:5, 1] = float("nan")
    found = train_with_evidence(mlp(1, 4, 2), X, Y, missing="nan", **QUICK)
    assert weights_of(found).isfinite().all()
    with pytest.raises(ValueError, match="has 5 NaN"):
        train_with_evidence(mlp(1, 4, 2), X, Y, **QUICK)

    class Strict(Gaussian):
        allows_missing = False

    with pytest.raises(ValueError, match="can't have missing targets"):
        train_with_evidence(mlp(1, 4, 2), X, Y, likelihood=Strict(), missing="nan", **QUICK)


def test_a_missing_target_has_no_pull():
    X, Y = waves(16)
    hidden = torch.cat([Y, torch.full((16, 1), float("nan"), dtype=Y.dtype)], 1)
    found = train_with_evidence(
        mlp(1, 2), X, hidden, missing="nan", prior=1.0, mean="network", **QUICK
    )
    start = mlp(1, 2)
    # weights of the output never seen only decay
    assert (found.net[0].weight[1] / start[0].weight[1]).abs() < 1
    assert found.gp.evidence().log_likelihood == pytest.approx(
        float(
            torch.distributions.Normal(found.net(X)[:, :1], found.likelihood.noise.sqrt())
            .log_prob(Y)
            .sum()
        )
    )


def test_convolutions_with_batch_norm_and_dropout():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(2 * 16, 3),
    )
    X, y = torch.randn(17, 1, 6, 6), torch.arange(17) % 3
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    ends = [
        train_with_evidence(net, X, y, likelihood="categorical", batch_size=8, **QUICK)
        for _ in range(2)
    ]
    assert torch.equal(torch.get_rng_state(), state)
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert same_bits(*ends)
    trained = ends[0].net
    assert not trained.training
    # statistics were gathered: training mode in the steps; 17 rows in batches of 5 or 6
    assert int(trained[1].num_batches_tracked) == 8


def test_modules_frozen_in_evaluation_mode_stay_there():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    net[1].eval()
    X, Y = waves(12, dtype=torch.float32)
    assert int(train_with_evidence(net, X, Y, **QUICK).net[1].num_batches_tracked) == 0
    found = train_with_evidence(net.eval(), X, Y, **QUICK)  # the whole: as it comes from prediction
    assert int(found.net[1].num_batches_tracked) == 8


def test_nothing_of_the_users_is_touched():
    X, Y = waves(16, dtype=torch.float32)
    net, likelihood, prior = mlp(1, 3, 1, dtype=torch.float32), Gaussian(0.3), Isotropic(0.7)
    net[0].weight.grad = torch.ones_like(net[0].weight)
    copies = [copy.deepcopy(m.state_dict()) for m in (net, likelihood, prior)]
    inputs, settings = X.clone(), (torch.get_default_dtype(), torch.is_grad_enabled())
    with torch.no_grad():
        found = train_with_evidence(net, X, Y, likelihood=likelihood, prior=prior, **QUICK)
    for module, before in zip((net, likelihood, prior), copies, strict=True):
        assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert prior.names is None
    assert net.training
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert torch.equal(X, inputs)
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == settings
    assert found.prior is not prior
    assert found.net[0].weight.dtype == torch.float32
    assert not torch.equal(found.net[0].weight, net[0].weight)


def test_weights_the_prior_is_not_over_are_trained_without_penalty():
    X, Y = waves(20)
    found = train_with_evidence(
        mlp(1, 3, 1),
        X,
        Y,
        parameters="last_layer",
        prior=1e4,
        likelihood=Gaussian(0.1),
        steps=60,
        updates=0,
        progress=False,
    )
    start = mlp(1, 3, 1)
    assert found.net[2].weight.abs().max() < 0.5 * start[2].weight.abs().max()
    assert found.net[0].weight.abs().max() > 0.5 * start[0].weight.abs().max()
    assert not torch.equal(found.net[0].weight, start[0].weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps: expected at least 1"),
        ({"steps": 5, "epochs": 2}, "steps and epochs"),
        ({"updates": 2, "every": 2}, "updates and every"),
        ({"burn_in": 20, "steps": 10}, "burn_in: 20"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"select": "best"}, "select"),
        ({"batch_size": 0}, "batch_size"),
        ({"updates": 0, "patience": 1}, "updates: 0"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    X, Y = waves(6)
    with pytest.raises(ValueError, match=message):
        train_with_evidence(mlp(1, 2, 1), X, Y, plan=TrainingPlan(**options), progress=False)


def test_short_names_stand_for_those_of_the_plan():
    X, Y = waves(12)
    plan = TrainingPlan(steps=50, updates=1, select="evidence")
    found = train_with_evidence(
        mlp(1, 2, 1), X, Y, plan=plan, steps=4, updates=2, batch_size=5, progress=False
    )
    assert [step.step for step in found.history] == [2, 4]
    with pytest.raises(ValueError, match="batch_size: expected at least 1, got 0"):
        train_with_evidence(mlp(1, 2, 1), X, Y, batch_size=0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"burn_in": 3}, r"burn_in: is in the plan, give plan=TrainingPlan\(burn_in=...\)"),
        ({"optimizer": torch.optim.SGD}, "optimizer: is in the plan"),
        ({"likelyhood": "gaussian"}, "likelyhood: there is no such option.* likelihood, prior"),
    ],
)
def test_an_option_of_the_plan_is_said_to_be_there(option, message):
    X, Y = waves(6)
    with pytest.raises(TypeError, match=message):
        train_with_evidence(mlp(1, 2, 1), X, Y, **option)
    with pytest.raises(TypeError, match=message):
        EvidenceTrainer(mlp(1, 2, 1), X, Y, **option)
