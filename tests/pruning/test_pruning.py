"""Weights and units taken out: the formula against recomputation, what goes first, what is left."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import lingp
from lingp.likelihoods import Gaussian
from lingp.priors import Diagonal, Isotropic, Layerwise, UnitWise
from lingp.pruning import prune
from lingp.pruning.local_evidence import LocalEvidence
from lingp.pruning.units import chains
from lingp.training import train_with_evidence

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def linear_problem(rows=30, inputs=8):
    """Four inputs matter, the others don't."""
    x = torch.randn(rows, inputs, generator=generator(), dtype=F64)
    weight = torch.tensor([1.5, -2.0, 0.8, 1.0] + [0.0] * (inputs - 4), dtype=F64)
    y = x @ weight + 0.3 + 0.2 * torch.randn(rows, generator=generator(1), dtype=F64)
    return x, y


def log_normal(y, covariance):
    """log N(y | 0, covariance), dense."""
    residual = y.numpy()
    _, log_determinant = np.linalg.slogdet(covariance)
    quadratic = residual @ np.linalg.solve(covariance, residual)
    return -0.5 * (quadratic + log_determinant + len(y) * np.log(2 * np.pi))


def linear_gp(rows=30, prior=None, mean="refit"):
    torch.manual_seed(3)
    x, y = linear_problem(rows)
    net = nn.Linear(8, 1).double()
    prior = prior or Layerwise({"weight": 0.5, "bias": 2.0})
    return lingp.LinearizedGP(net, Gaussian(0.04), prior=prior, mean=mean).fit(x, y, progress=False)


def dense_evidence(gp, on):
    """Of Bayesian linear regression with the inputs (and the bias, last) that are on."""
    x, y = linear_problem(gp.laplace.training.num_data)
    features = torch.cat([x, torch.ones(len(x), 1, dtype=F64)], 1)[:, on]
    variances = torch.tensor([2.0] * 8 + [0.5], dtype=F64)[on]
    covariance = (features * variances) @ features.mT + 0.04 * torch.eye(len(x), dtype=F64)
    return log_normal(y, covariance.numpy())


@pytest.mark.parametrize("rows", [30, 6])  # more and fewer than weights: both forms of S
def test_change_is_exact_for_a_linear_gaussian_model(rows):
    gp = linear_gp(rows)
    everything = torch.ones(9, dtype=torch.bool)
    whole = dense_evidence(gp, everything)
    assert gp.evidence().value == pytest.approx(whole, rel=1e-11)
    local = LocalEvidence(gp.laplace)
    singles = local.single_changes()
    for i in range(9):
        on = everything.clone()
        on[i] = False
        expected = dense_evidence(gp, on) - whole
        # rounding of a difference of two sums of this size, with condition number about 1e4
        assert float(singles[i]) == pytest.approx(expected, abs=1e-9 * abs(whole))
    groups = [
        torch.tensor([0, 5]),
        torch.tensor([8]),
        torch.tensor([2, 3, 7]),
        torch.tensor([1, 6]),
    ]
    changes = local.changes(groups)
    for group, change in zip(groups, changes, strict=True):
        on = everything.clone()
        on[group] = False
        assert float(change) == pytest.approx(dense_evidence(gp, on) - whole, abs=1e-9 * abs(whole))


@pytest.mark.parametrize("rows", [30, 6])
def test_removals_one_after_the_other_are_exact(rows):
    gp = linear_gp(rows)
    local = LocalEvidence(gp.laplace)
    on = torch.ones(9, dtype=torch.bool)
    whole = dense_evidence(gp, on)
    for group in (torch.tensor([6]), torch.tensor([4, 5]), torch.tensor([0, 8]), torch.tensor([8])):
        local.remove(group)
        on[group] = False
        expected = dense_evidence(gp, on) - whole
        assert local.change == pytest.approx(expected, abs=1e-9 * abs(whole))
        assert torch.equal(local.left, on)
        assert bool((local.mean[~on] == 0).all())


def test_change_counts_the_gradient_of_a_network_that_is_not_at_its_mode():
    gp = linear_gp(mean="network")
    laplace = gp.laplace
    training = laplace.training
    local = LocalEvidence(laplace)
    theta = training.linearized.weights()
    scale = torch.tensor([2.0] * 8 + [0.5], dtype=F64).sqrt()
    jacobian = training.matmul(torch.eye(9, dtype=F64)).squeeze(1)
    precision = torch.eye(9, dtype=F64) + scale[:, None] * (jacobian.mT @ jacobian) * scale / 0.04
    covariance = torch.linalg.inv(precision)
    group, rest = torch.tensor([0, 7]), torch.tensor([1, 2, 3, 4, 5, 6, 8])
    move = -covariance[:, group] @ torch.linalg.solve(
        covariance[group[:, None], group], (theta / scale)[group]
    )
    moved = theta + scale * move
    y = linear_problem()[1]

    def value(weights, keep):
        fit = (-0.5 * (y - jacobian @ weights).square() / 0.04).sum()
        squares = (weights / scale)[keep].square().sum()
        return fit - 0.5 * squares - 0.5 * torch.logdet(precision[keep[:, None], keep])

    expected = value(moved, rest) - value(theta, torch.arange(9))
    assert float(local.changes([group])) == pytest.approx(float(expected), rel=1e-10)


def test_pruning_a_linear_model_predicts_its_evidence_to_rounding():
    gp = linear_gp()
    pruned = prune(gp, "weights", max_loss=0.0, progress=False)
    kept = {i for i in range(8) if pruned.masks["weight"][0, i]}
    assert kept == {0, 1, 2, 3}  # those that the data were made with
    assert pruned.evidence > pruned.evidence_before
    assert pruned.evidence == pytest.approx(pruned.predicted, abs=1e-8)
    on = torch.cat([pruned.masks["weight"][0], pruned.masks["bias"]])
    assert pruned.evidence == pytest.approx(dense_evidence(gp, on), abs=1e-8)
    assert bool((pruned.net.weight[~pruned.masks["weight"]] == 0).all())
    assert pruned.weights == int(on.sum()) == 9 - len(pruned.removed)
    # the covariance of predictions is that of the model without these inputs
    x = linear_problem()[0][:3]
    features = torch.cat([x, torch.ones(3, 1, dtype=F64)], 1)[:, on]
    train = torch.cat([linear_problem()[0], torch.ones(30, 1, dtype=F64)], 1)[:, on]
    variances = torch.tensor([2.0] * 8 + [0.5], dtype=F64)[on]
    precision = torch.diag(1 / variances) + train.mT @ train / 0.04
    expected = features @ torch.linalg.solve(precision, features.mT)
    got = pruned.gp.posterior(x).covariance_matrix
    assert torch.allclose(got, expected, rtol=1e-9, atol=0)


def test_until_leaves_so_many_and_a_share():
    gp = linear_gp()
    assert prune(gp, "weights", until=2, progress=False).weights == 2
    assert prune(gp, "weights", until=0.34, progress=False).weights == 3
    lax = prune(gp, "weights", max_loss=400.0, progress=False)
    assert lax.weights < 4


def three_steps(x):
    return (3 * x + 4).tanh() - 1.5 * (3 * x).tanh() + (3 * x - 4).tanh()


@pytest.fixture(scope="module")
def steps():
    """Data of a network of three units, all of which it takes."""
    x = torch.rand(60, 1, generator=generator(), dtype=F64) * 6 - 3
    y = three_steps(x) + 0.05 * torch.randn(60, 1, generator=generator(1), dtype=F64)
    return x[:40], y[:40], x[40:], y[40:]


@pytest.fixture(scope="module")
def trained(steps):
    net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    with torch.no_grad():
        net[0].weight.fill_(3.0)
        net[0].bias.copy_(torch.tensor([4.0, 0.0, -4.0]))
        net[2].weight.copy_(torch.tensor([[1.0, -1.5, 1.0]]))
        net[2].bias.fill_(0.0)
    return train_with_evidence(net, *steps[:2], steps=150, updates=3, progress=False)


def widened(net, *, dead=0, twins=0):
    """The same function with units that nothing sees, and with units that stand in twice."""
    first, activation, last = copy.deepcopy(net)
    width = first.out_features + twins + dead
    made = nn.Sequential(nn.Linear(1, width), activation, nn.Linear(width, 1)).double()
    leaves = last.weight.detach().clone()
    leaves[:, :twins] /= 2
    with torch.no_grad():
        for name in ("weight", "bias"):
            enters = getattr(first, name)
            getattr(made[0], name).copy_(torch.cat([enters, enters[:twins], enters[:dead]]))
        unseen = torch.zeros(1, dead, dtype=F64)
        made[2].weight.copy_(torch.cat([leaves, leaves[:, :twins], unseen], 1))
        made[2].bias.copy_(last.bias)
    return made


def conditioned(net, trained, steps, prior=None):
    prior = prior or Isotropic(trained.prior.precision.item())
    return lingp.LinearizedGP(net, copy.deepcopy(trained.likelihood), prior=prior).fit(
        *steps[:2], progress=False
    )


def gone(pruned):
    return {int(removal.name.removeprefix("0[").removesuffix("]")) for removal in pruned.removed}


def test_dead_units_go_and_nothing_else(trained, steps):
    width = trained.net[0].out_features
    wide = widened(trained.net, dead=2)
    pruned = prune(conditioned(wide, trained, steps), progress=False)
    assert gone(pruned) == {width, width + 1}
    assert pruned.net[2].in_features == width
    # their weights cost squares, without which the evidence is larger
    assert pruned.evidence > pruned.evidence_before


def test_of_two_equal_units_one_goes_and_the_other_takes_its_part(trained, steps):
    width = trained.net[0].out_features
    wide = widened(trained.net, twins=2)
    gp = conditioned(wide, trained, steps)
    pruned = prune(gp, progress=False)
    assert [len(gone(pruned) & pair) for pair in ({0, width}, {1, width + 1})] == [1, 1]
    assert len(pruned.removed) == 2
    noise = float(trained.likelihood.noise.detach()) ** 0.5
    with torch.no_grad():
        # zeroed outputs alone would be off by about the size of y, 0.7
        assert (pruned.net(steps[0]) - wide(steps[0])).square().mean().sqrt() < noise / 3
    before = gp.predict(steps[2]).log_prob(steps[3]).mean()
    after = pruned.gp.predict(steps[2]).log_prob(steps[3]).mean()
    assert abs(float(after - before)) < 0.05


def test_the_smaller_network_is_the_larger_with_zeros(trained, steps):
    gp = conditioned(widened(trained.net, dead=2), trained, steps, Layerwise(0.3))
    pruned = prune(gp, until=2, progress=False)
    assert len(gone(pruned)) == len(pruned.removed) == 3
    assert pruned.net[0].weight.shape == (2, 1)
    assert pruned.net[2].weight.shape == (1, 2)
    assert pruned.weights == sum(p.numel() for p in pruned.net.parameters())
    assert pruned.weights_before == sum(p.numel() for p in gp.linearized.network.parameters())
    assert all(p.requires_grad for p in pruned.net.parameters())
    # evidence of the cut network, computed from nothing
    anew = lingp.LinearizedGP(pruned.net, Gaussian(trained.likelihood.noise.item()), prior=0.3)
    anew.fit(*steps[:2], progress=False)
    assert pruned.evidence == pytest.approx(anew.evidence().value, rel=1e-10)
    assert pruned.removed[-1].evidence == pytest.approx(pruned.evidence, rel=1e-9)
    assert str(pruned).startswith("pruned 3 units: 16 -> 7 weights, log evidence ")


def test_what_is_needed_stays(trained):
    pruned = prune(trained, progress=False)
    assert pruned.removed == ()
    assert pruned.evidence == pytest.approx(trained.history[-1].evidence, rel=1e-9)
    assert prune(trained, until=2, progress=False).evidence < pruned.evidence - 20


def test_a_trained_network_keeps_its_predictions_and_evidence(steps):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))
    x, y, x_test, y_test = (t.float() for t in steps)
    found = train_with_evidence(net, x, y, steps=200, updates=3, mean="network", progress=False)
    before = [p.clone() for p in found.net.parameters()]
    precision = found.prior.precision.clone()
    pruned = prune(found, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(before, found.net.parameters(), strict=True))
    assert torch.equal(precision, found.prior.precision)
    assert pruned.evidence >= pruned.evidence_before - 1
    assert pruned.net[0].out_features <= 6
    assert pruned.net[0].weight.dtype == torch.float32
    old = found.gp.predict(x_test).log_prob(y_test).mean()
    new = pruned.gp.predict(x_test).log_prob(y_test).mean()
    assert float(new - old) > -0.1
    again = prune(found, progress=False)
    assert [r.name for r in again.removed] == [r.name for r in pruned.removed]


@pytest.mark.parametrize("kind", [UnitWise, Diagonal])
def test_units_that_the_prior_switched_off_go_for_nothing(kind, trained, steps):
    width = trained.net[0].out_features
    net = widened(trained.net, dead=2)
    with torch.no_grad():
        net[0].weight[width:], net[0].bias[width:] = 0, 0
    usual = trained.prior.precision.item()
    column = torch.full((width + 2,), usual, dtype=F64)
    column[width:] = 1e8
    if kind is UnitWise:
        prior = UnitWise({"0.weight": usual, "0.bias": usual, "2.weight": column, "2.bias": usual})
    else:
        prior = Diagonal(
            {"0.weight": column, "0.bias": column, "2.weight": column, "2.bias": usual}
        )
    gp = conditioned(net, trained, steps, prior)
    pruned = prune(gp, progress=False)
    assert gone(pruned) == {width, width + 1}
    assert pruned.evidence == pytest.approx(pruned.evidence_before, abs=1e-3)
    assert isinstance(pruned.gp.prior, kind)
    assert pruned.gp.prior.variances().shape == (3 * width + 1,)


def test_weights_of_any_network_and_likelihood_become_zero():
    torch.manual_seed(0)

    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 3)
            self.skip = nn.Linear(2, 3)

        def forward(self, x):
            return self.b(torch.tanh(self.a(x))) + self.skip(x)

    x = torch.randn(20, 2, generator=generator(), dtype=F64)
    labels = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    gp = lingp.LinearizedGP(Skip().double(), "categorical", prior=1.0)
    gp.fit(x, labels, progress=False)
    pruned = prune(gp, "weights", progress=False)
    zeros = sum(int((p == 0).sum()) for p in pruned.net.parameters())
    assert zeros == len(pruned.removed) == pruned.weights_before - pruned.weights > 0
    assert pruned.evidence > pruned.evidence_before
    for name, mask in pruned.masks.items():
        assert bool((pruned.net.get_parameter(name)[~mask] == 0).all())
    units = prune(gp, "units", until=0.5, progress=False)  # no chain: rows of a and b
    assert units.weights < units.weights_before
    assert units.net.a.weight.shape == (3, 2)


def test_chains_are_linear_layers_that_only_the_next_one_sees():
    inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 5))
    net = nn.Sequential(inner, nn.GELU(), nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 1))
    assert chains(net) == {"0.0": "0.3", "0.3": "2"}
    tied = nn.Linear(4, 4)
    assert chains(nn.Sequential(tied, nn.Tanh(), tied, nn.Tanh(), nn.Linear(4, 1))) == {}
    softmax = nn.Sequential(nn.Linear(2, 3), nn.Softmax(-1), nn.Linear(3, 1))
    assert chains(softmax) == {}


def test_every_layer_keeps_a_unit(trained, steps):
    gp = conditioned(trained.net, trained, steps)
    pruned = prune(gp, until=0, progress=False)
    assert pruned.net[0].out_features == 1


def test_bad_arguments_are_named(trained):
    with pytest.raises(ValueError, match=r"what: expected .*got 'rows'"):
        prune(trained, "rows")
    with pytest.raises(ValueError, match="max_loss: expected at least 0"):
        prune(trained, max_loss=-1.0)
    with pytest.raises(ValueError, match="until: expected"):
        prune(trained, until=-3)
    with pytest.raises(TypeError, match=r"trained: expected.*got Sequential"):
        prune(trained.net)
    with pytest.raises(RuntimeError, match="call fit"):
        prune(lingp.LinearizedGP(trained.net))
    with pytest.raises(ValueError, match="no hidden layer"):
        prune(linear_gp(), "units")
    small = lingp.LinearizedGP(trained.net, prior=1.0, memory_budget=1 << 20)
    small.fit(torch.zeros(5, 1), torch.zeros(5, 1), progress=False)
    small.memory_budget = 10
    with pytest.raises(MemoryError, match="covariance of all 10 weights"):
        prune(small)
