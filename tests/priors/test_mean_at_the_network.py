"""Priors whose mean is the weights of the network: whose, when, and what follows for inference."""

import copy
import math

import pytest
import torch
from dense import dense_jacobian
from torch import nn
from torch.testing import assert_close

import lingp
from lingp.gpytorch_models import PriorMean
from lingp.likelihoods import Gaussian
from lingp.linearization import LinearizedNetwork
from lingp.priors import Diagonal, Isotropic, Layerwise, UnitWise

F64 = torch.float64
KINDS = {
    "isotropic": lambda **options: Isotropic(2.0, **options),
    "layerwise": lambda **options: Layerwise(torch.tensor([0.5, 1.0, 2.0, 4.0]), **options),
    "unit-wise inputs": lambda **options: UnitWise(torch.linspace(0.5, 2, 8), **options),
    "unit-wise outputs": lambda **options: UnitWise(2.0, "outputs", **options),
    "diagonal": lambda **options: Diagonal(torch.linspace(0.5, 2, 17), **options),
}
NOISE = 0.05


def make_net(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def draw(num_rows, seed=0):
    X = torch.randn(num_rows, 2, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return X, (2 * X[:, :1]).sin() + X[:, 1:]


def weights_of(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def dense(net, prior, X, X_new):
    """Outputs at both inputs, and K between all of them, of the network in float64."""
    both = torch.cat([X, X_new])
    J = dense_jacobian(copy.deepcopy(net), both).squeeze(1)
    variances = prior.variances().detach()
    if len(variances) == 4:
        sizes = torch.tensor([p.numel() for p in net.parameters()])
        variances = variances.repeat_interleave(sizes)
    with torch.no_grad():
        f = net(both).squeeze(1)
    return f[: len(X)], f[len(X) :], (J * variances) @ J.mT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inference", ["weight_space", "function_space"])
def test_refit_is_gaussian_process_regression_of_the_networks_residuals(kind, inference):
    net, (X, y), (X_new, _) = make_net(), draw(9), draw(5, seed=1)
    prior = KINDS[kind](mean="network")
    gp = lingp.LinearizedGP(net, Gaussian(NOISE), prior=prior, inference=inference, mean="refit")
    gp.fit(X, y, progress=False)
    f, f_new, K = dense(net, prior, X, X_new)
    n = len(X)
    A, residual = K[:n, :n] + NOISE * torch.eye(n, dtype=F64), y.squeeze(1) - f
    inverse = torch.linalg.inv(A)
    evidence = -0.5 * (
        residual @ inverse @ residual + torch.linalg.slogdet(A)[1] + n * math.log(2 * math.pi)
    )
    assert_close(gp.log_marginal_likelihood().detach(), evidence, rtol=1e-11, atol=0)
    found = gp.posterior(X_new)
    assert_close(found.mean, f_new + K[n:, :n] @ inverse @ residual, rtol=1e-10, atol=1e-11)
    covariance = K[n:, n:] - K[n:, :n] @ inverse @ K[:n, n:]
    assert_close(found.covariance_matrix, covariance, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_of_the_networks_mean_has_no_penalty(kind):
    net, (X, y) = make_net(), draw(9)
    prior = KINDS[kind](mean="network")
    gp = lingp.LinearizedGP(net, Gaussian(NOISE), prior=prior).fit(X, y, progress=False)
    f, _, K = dense(net, prior, X, X)
    K = K[:9, :9]
    log_likelihood = torch.distributions.Normal(f, NOISE**0.5).log_prob(y.squeeze(1)).sum()
    complexity = torch.linalg.slogdet(torch.eye(9, dtype=F64) + K / NOISE)[1]
    found = gp.log_marginal_likelihood().detach()
    assert_close(found, log_likelihood - 0.5 * complexity, rtol=1e-11, atol=0)
    assert torch.equal(gp.laplace.prior_deviation(), torch.zeros(17, dtype=F64))


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_is_a_value_per_weight_of_those_that_are_uncertain(kind):
    net = make_net()
    prior = KINDS[kind](mean="network")
    lingp.LinearizedGP(net, prior=prior)
    assert torch.equal(prior.mean, weights_of(net))
    part = Isotropic(mean="network").bind_to(LinearizedNetwork(net, "2.*"))
    assert torch.equal(part.mean, weights_of(net[2]))


def test_a_prior_of_several_networks_is_at_the_weights_of_each():
    nets, (X, y) = [make_net(seed) for seed in (0, 1)], draw(9)
    prior = Isotropic(2.0, mean="network")
    gps = [lingp.LinearizedGP(net, prior=prior, mean="refit").fit(X, y) for net in nets]
    alone = [
        lingp.LinearizedGP(net, prior=Isotropic(2.0, mean="network"), mean="refit").fit(X, y)
        for net in nets
    ]
    for gp, own in zip(gps, alone, strict=True):
        assert torch.equal(gp.log_marginal_likelihood(), own.log_marginal_likelihood())
        assert torch.equal(gp.predict(X).mean, own.predict(X).mean)
    assert abs(gps[0].log_marginal_likelihood() - gps[1].log_marginal_likelihood()) > 1e-3


def test_a_mean_that_is_held_stays():
    first, second = make_net(0), make_net(1)
    prior = Isotropic(2.0, mean="network").bind_to(LinearizedNetwork(first)).hold_mean()
    prior.bind_to(LinearizedNetwork(second))
    assert torch.equal(prior.mean, weights_of(first))
    assert Isotropic(mean=0.5).bind(["a"]).hold_mean().mean.item() == 0.5
    with pytest.raises(RuntimeError, match="isn't bound"):
        Isotropic(mean="network").hold_mean()


def test_an_exchanged_prior_is_at_the_weights():
    net, (X, y) = make_net(), draw(9)
    gp = lingp.LinearizedGP(net, mean="refit").fit(X, y, progress=False)
    gp.prior = Layerwise(3.0, mean="network")
    expected = lingp.LinearizedGP(net, prior=Isotropic(3.0, mean=weights_of(net)), mean="refit")
    expected.fit(X, y, progress=False)
    for a, b in ((gp, expected), (copy.deepcopy(gp), expected)):
        assert_close(a.log_marginal_likelihood(), b.log_marginal_likelihood(), rtol=1e-12, atol=0)
        assert_close(a.predict(X).mean, b.predict(X).mean, rtol=1e-11, atol=1e-12)


def test_prior_means_of_kernels_are_the_network_whoever_else_has_the_prior():
    prior, (X, _) = Isotropic(mean="network"), draw(5)
    nets = [make_net(seed) for seed in (0, 1)]
    means = [PriorMean(lingp.NTKernel.from_model(net, prior=prior)) for net in nets]
    for mean, net in zip(means, nets, strict=True):
        assert torch.equal(mean(X), net(X).squeeze(1))
    single = PriorMean(
        lingp.NTKernel.from_model(make_net().float(), prior=Isotropic(mean="network"))
    )
    assert torch.equal(single.double()(X), make_net().float().double()(X).squeeze(1))


def test_the_word_is_shown():
    assert repr(Isotropic(2.0, mean="network")).startswith(
        'Isotropic(\n  precision=2, mean="network"'
    )
    assert 'precision=1, mean="network", units=' in repr(UnitWise(mean="network"))
    prior = Isotropic(mean="network").bind_to(LinearizedNetwork(make_net()))
    assert prior.extra_repr() == 'precision=1, mean="network"'
    shown = ", ".join(f"{w:.4g}" for w in weights_of(make_net())[:4].tolist())
    assert prior.hold_mean().extra_repr() == f"precision=1, mean=[{shown}, ...]"
    assert Isotropic(2.0, mean=0.3).extra_repr() == "precision=2, mean=0.3"
    assert Isotropic(2.0).extra_repr() == "precision=2"


@pytest.mark.parametrize("kind", [Isotropic, Layerwise, UnitWise, Diagonal])
def test_other_words_and_names_alone_are_refused(kind):
    with pytest.raises(ValueError, match=r'mean: expected .* or "network", got \'zero\''):
        kind(mean="zero")
    prior = kind(mean="network")
    with pytest.raises(ValueError, match="bind_to"):
        prior.bind(["weight"], [(2, 2)])
    assert prior.names is None
