"""Heads for heteroscedastic regression: initialisation, conversion, training."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import lingp
from lingp.likelihoods import Heteroscedastic
from lingp.linearization import LinearizedNetwork
from lingp.training import (
    NaturalFromMeanVariance,
    NaturalHead,
    initialize_head,
    natural_outputs,
    train_with_evidence,
    with_natural_head,
)

LINKS = ["softplus", "exp"]
every_link = pytest.mark.parametrize("link", LINKS)
close = torch.testing.assert_close


def tensor(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def backbone(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh()).to(dtype)


def mean_variance_network(num_targets, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2 * num_targets)).to(dtype)


def moments(likelihood, f):
    return likelihood.conditional_mean(f), likelihood.conditional_variance(f)


class Pair(nn.Module):
    """Means and raw variances from two networks, (N,) each for one target."""

    def __init__(self, num_targets):
        super().__init__()
        torch.manual_seed(0)
        self.mean = nn.Linear(3, num_targets).double()
        self.raw = nn.Linear(3, num_targets).double()

    def forward(self, x):
        return self.mean(x).squeeze(-1), self.raw(x).squeeze(-1)


class TwoInputs(nn.Module):
    """One tensor of means and raw variances from two inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2).double()

    def forward(self, a, b):
        return self.layer(a + b)


@every_link
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_invert_the_link(link, dtype):
    likelihood = Heteroscedastic(link)
    # every variance the likelihood can give, up to its bounds
    log_variance = torch.linspace(-40, 40, 161, dtype=dtype).unsqueeze(-1)
    mean = 3 * tensor(161, 1, dtype=dtype)
    got = moments(likelihood, natural_outputs(mean, log_variance, likelihood))
    # log σ² and f₂ are rounded to half a unit at 40, which σ² multiplies
    tolerance = 40 * torch.finfo(dtype).eps
    close(got[0], mean, rtol=tolerance, atol=0)
    close(got[1], log_variance.exp(), rtol=2 * tolerance, atol=0)


@every_link
def test_outputs_invert_the_link_down_to_its_floor(link):
    likelihood = Heteroscedastic(link, floor=0.1)
    log_variance = torch.linspace(-30, math.log(9.99), 101).double().unsqueeze(-1)
    mean = 3 * tensor(101, 1)
    got = moments(likelihood, natural_outputs(mean, log_variance, likelihood))
    # beside the floor g - floor keeps 1e-3 of its digits, which g makes up for
    close(got[0], mean, rtol=1e-13, atol=0)
    close(got[1], log_variance.exp(), rtol=1e-13, atol=0)
    wide = moments(likelihood, natural_outputs(mean[:1], log_variance[-1:] + 5, likelihood))
    close(torch.stack(wide), torch.stack([mean[:1], torch.full_like(mean[:1], 10.0)]))
    net = NaturalFromMeanVariance(mean_variance_network(1), likelihood=likelihood)
    out = net.net(tensor(5, 3))
    close(moments(likelihood, net(tensor(5, 3)))[1], out[:, 1:].exp(), rtol=1e-12, atol=0)
    assert "floor=0.1" in repr(net)


@every_link
@pytest.mark.parametrize("num_targets", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_initialised_network_predicts_mean_and_variance_of_the_data(link, num_targets, dtype):
    likelihood = Heteroscedastic(link)
    y = tensor(50, num_targets) * torch.tensor([1e-3, 1.0, 1e4])[:num_targets] + 7
    y[:30:3, -1] = math.nan
    net = with_natural_head(backbone(dtype), 6, num_targets)
    initialize_head(net, y.to(dtype), likelihood)
    y = y.to(dtype).double()
    mean, variance = moments(likelihood, net(tensor(4, 3, dtype=dtype)))
    expected = [torch.stack([c[~c.isnan()].mean() for c in y.T])]
    expected.append(torch.stack([c[~c.isnan()].var(unbiased=False) for c in y.T]))
    # g(f₂) takes a rounding of f₂, at most log 1e8 here, to that relative error
    tolerance = 40 * torch.finfo(dtype).eps
    close(mean.double(), expected[0].expand_as(mean), rtol=tolerance, atol=0)
    close(variance.double(), expected[1].expand_as(variance), rtol=tolerance, atol=0)
    assert mean.dtype == dtype


def test_an_initialised_constant_has_the_largest_likelihood():
    likelihood, y = Heteroscedastic(), 2 * tensor(40, 2) + 1
    head = NaturalHead(3, 2, dtype=torch.float64)
    initialize_head(head, y, likelihood)
    loss = -likelihood.log_prob(y, head(torch.zeros(40, 3, dtype=torch.float64))).mean()
    loss.backward()
    assert head.bias.grad.abs().max() < 1e-13


def test_an_initialised_network_can_learn():
    net, y = with_natural_head(backbone(), 6), tensor(20, 1)
    initialize_head(net, y)
    likelihood, x = Heteroscedastic(), tensor(20, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        (-likelihood.log_prob(y, net(x)).mean()).backward()
        optimizer.step()
    # from the second step on the backbone has gradients
    assert all(bool((p.grad != 0).any()) for p in net.parameters())


def test_the_weights_are_scaled_as_asked():
    head = NaturalHead(3, dtype=torch.float64)
    before = head.weight.clone()
    initialize_head(head, tensor(9), weight_scale=0.5)
    close(head.weight, 0.5 * before, rtol=0, atol=0)


def test_a_plain_last_layer_is_initialised_too():
    net = mean_variance_network(2)
    before = copy.deepcopy(net[0].state_dict())
    initialize_head(net, 3 + tensor(30, 2), "heteroscedastic")
    close(net[0].state_dict(), before, rtol=0, atol=0)
    assert bool((Heteroscedastic().conditional_mean(net(tensor(2, 3))) > 2).all())


@every_link
@pytest.mark.parametrize("num_targets", [1, 3])
@pytest.mark.parametrize("variance", ["log", "log_std", "softplus", torch.exp])
def test_a_converted_network_has_the_same_predictive(link, num_targets, variance):
    net, x, y = mean_variance_network(num_targets), tensor(9, 3), tensor(9, num_targets, seed=1)
    likelihood = Heteroscedastic(link)
    converted = NaturalFromMeanVariance(net, variance, likelihood=likelihood)
    mean, raw = net(x).chunk(2, -1)
    sigma2 = {
        "log": torch.exp,
        "log_std": lambda t: t.exp().square(),
        "softplus": lambda t: torch.logaddexp(t, torch.zeros_like(t)),
        torch.exp: torch.exp,
    }[variance](raw)
    expected = torch.distributions.Normal(mean, sigma2.sqrt()).log_prob(y).sum(-1)
    close(likelihood.log_prob(y, converted(x)), expected, rtol=1e-12, atol=1e-12)
    close(moments(likelihood, converted(x)), (mean, sigma2), rtol=1e-12, atol=1e-12)


def test_pairs_of_outputs_and_several_inputs_are_taken():
    likelihood, x = Heteroscedastic(), tensor(5, 3)
    for num_targets in (1, 2):
        net = Pair(num_targets)
        mean, raw = (t.reshape(5, num_targets) for t in net(x))
        got = moments(likelihood, NaturalFromMeanVariance(net)(x))
        close(got, (mean, raw.exp()), rtol=1e-12, atol=1e-12)
    net = TwoInputs()
    converted = NaturalFromMeanVariance(net)
    mean = moments(likelihood, converted(x, b=x))[0]
    close(mean, net(x, x)[:, :1], rtol=1e-12, atol=1e-12)
    close(converted(x, x), converted(x, b=x), rtol=0, atol=0)
    gp = lingp.LinearizedGP(converted, likelihood).fit((x, x), tensor(5), progress=False)
    assert bool((gp.predict((x, x)).epistemic_variance > 0).all())


def test_a_least_variance_is_added():
    net, x = mean_variance_network(1), tensor(5, 3)
    converted = NaturalFromMeanVariance(net, "softplus", minimum_variance=0.25)
    expected = torch.nn.functional.softplus(net(x)[:, 1:]) + 0.25
    close(Heteroscedastic().conditional_variance(converted(x)), expected, rtol=1e-12, atol=0)


@every_link
@pytest.mark.parametrize("variance", ["log", "log_std", "softplus"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("raw", [-1e4, -100.0, -46.0, -45.0, -20.0, 0.0, 20.0, 60.0, 1e4])
def test_gradients_are_finite_at_extreme_values(link, variance, dtype, raw):
    likelihood = Heteroscedastic(link)
    out = torch.tensor([[0.5, raw]], dtype=dtype, requires_grad=True)
    converted = NaturalFromMeanVariance(nn.Identity(), variance, likelihood=likelihood)
    f = converted(out)
    (gradient,) = torch.autograd.grad(f.sum(), out)
    assert bool(torch.isfinite(f).all() and torch.isfinite(gradient).all())
    # at the data's mean the squared error is nought, however small the variance is
    y = torch.tensor([[0.5]], dtype=dtype)
    f = converted(out)
    (gradient,) = torch.autograd.grad(likelihood.log_prob(y, f).sum(), out)
    assert bool(torch.isfinite(gradient).all())


@every_link
def test_a_converted_network_is_linearised_in_the_weights_it_had(link):
    net, x, y = mean_variance_network(2), tensor(12, 3), tensor(12, 2, seed=1)
    converted = NaturalFromMeanVariance(net, likelihood=Heteroscedastic(link))
    linearized = LinearizedNetwork(converted)
    f, factors = linearized.factors(x)
    assert linearized.parameter_names == [f"net.{name}" for name, _ in net.named_parameters()]
    weights = dict(converted.named_parameters())
    jacobians = torch.func.jacrev(lambda w: torch.func.functional_call(converted, w, (x,)))(weights)
    dense = torch.cat([j.reshape(12, 4, -1) for j in jacobians.values()], -1)
    close(f, converted(x).detach(), rtol=1e-14, atol=1e-14)
    close(factors.jacobian(), dense, rtol=1e-12, atol=1e-12)
    gp = lingp.LinearizedGP(converted, Heteroscedastic(link), prior=2.0)
    gp.fit(x, y, progress=False)
    root = Heteroscedastic(link).curvature_root(y, f).dense()
    phi = (root.mT @ dense).flatten(0, 1) / math.sqrt(2.0)
    eye = torch.eye(phi.shape[1], dtype=torch.float64)
    expected = torch.linalg.slogdet(eye + phi.mT @ phi)[1].item()
    assert gp.evidence().log_determinant == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("num_targets", [1, 2])
def test_a_natural_head_has_a_rule_of_its_own(num_targets, recwarn):
    net, x = with_natural_head(backbone(), 6, num_targets), tensor(7, 3)
    linearized = LinearizedNetwork(net)
    _, factors = linearized.factors(x)
    assert not recwarn.list
    assert linearized.parameter_names[-2:] == ["head.weight", "head.bias"]
    eye = torch.eye(2 * num_targets, dtype=torch.float64)
    close(factors.jacobian()[..., -2 * num_targets :], eye.expand(7, -1, -1), rtol=0, atol=0)
    chosen = LinearizedNetwork(net, "last_layer").parameter_names
    assert chosen == ["head.weight", "head.bias"]


def test_head_and_wrapper_are_copied_and_kept():
    net = with_natural_head(backbone(torch.float32), 6, 2)
    assert net.head.weight.dtype == torch.float32
    assert "num_targets=2" in str(net)
    x = tensor(3, 3, dtype=torch.float32)
    close(pickle.loads(pickle.dumps(net))(x), net(x), rtol=0, atol=0)
    converted = NaturalFromMeanVariance(net, "softplus")
    assert "variance='softplus'" in str(converted)
    close(pickle.loads(pickle.dumps(converted))(x), converted(x), rtol=0, atol=0)
    assert dict(converted.named_parameters()).keys() == {
        f"net.{n}" for n, _ in net.named_parameters()
    }


@every_link
def test_training_finds_a_known_noise_function(link):
    """Noise exp(0.25 x - 1) around cos x, from 600 rows.

    With the 13 directions that the data determine split evenly, 6.5 parameters of log σ leave it a
    root mean squared error of √(6.5 / (2·600)) = 0.074, and the mean √(6.5/600) times the root mean
    square of σ, 0.046. Asked for: within twice that.
    """
    likelihood = Heteroscedastic(link)
    x = torch.linspace(-3, 3, 600, dtype=torch.float64).unsqueeze(-1)
    sd = (0.25 * x - 1).exp()
    y = x.cos() + sd * tensor(600, 1, seed=3)
    torch.manual_seed(0)
    net = with_natural_head(nn.Sequential(nn.Linear(1, 20), nn.GELU()).double(), 20)
    initialize_head(net, y, likelihood)
    trained = train_with_evidence(
        net,
        x,
        y,
        likelihood=likelihood,
        steps=300,
        updates=2,
        learning_rate=(5e-2, 1e-4),
        progress=False,
    )
    prediction = trained.gp.predict(x, progress=False)
    error = (0.5 * prediction.aleatoric_variance.log() - sd.log()).square().mean().sqrt()
    assert error < 2 * 0.074
    assert (prediction.mean - x.cos()).square().mean().sqrt() < 2 * 0.046


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NaturalHead(0), "in_features: expected a number >= 1, got 0"),
        (lambda: NaturalHead(3, 0), "num_targets: expected a number >= 1, got 0"),
        (lambda: initialize_head(NaturalHead(3), torch.ones(5)), "target 0 has fewer than two"),
        (
            lambda: initialize_head(NaturalHead(3), torch.full((5,), math.nan)),
            "target 0 has fewer than two",
        ),
        (
            lambda: initialize_head(NaturalHead(3), torch.tensor([1.0, math.inf])),
            "y: expected finite targets",
        ),
        (
            lambda: initialize_head(NaturalHead(3, 2), torch.rand(5)),
            r"2 outputs for the 1 targets of y, but its natural heads are for \[2\] targets",
        ),
        (
            lambda: initialize_head(nn.Linear(3, 5), torch.rand(5)),
            r"its linear layers have \[5\] outputs",
        ),
        (lambda: initialize_head(NaturalHead(3, bias=False), torch.rand(5)), "no bias"),
        (
            lambda: initialize_head(NaturalHead(3), torch.rand(5), "gaussian"),
            "expected Heteroscedastic, got Gaussian",
        ),
        (lambda: NaturalFromMeanVariance(nn.Linear(3, 2), "sd"), "variance: expected"),
        (
            lambda: NaturalFromMeanVariance(nn.Linear(3, 2), minimum_variance=-1.0),
            "minimum_variance: expected a number >= 0",
        ),
        (
            lambda: NaturalFromMeanVariance(nn.Linear(3, 3))(torch.rand(2, 3)),
            r"expected outputs \(N x 2T\).*got \(2, 3\)",
        ),
    ],
)
def test_what_cannot_be_done_is_said(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
