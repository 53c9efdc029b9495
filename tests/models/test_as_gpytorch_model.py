"""A `LinearizedGP` in the hands of a GPyTorch user: modes, training loops, state, settings."""

from __future__ import annotations

import copy
import dataclasses

import gpytorch
import pytest
import torch
from torch import nn

import lingp
from lingp import LaplaceMarginalLogLikelihood, LinearizedGP


@dataclasses.dataclass
class Case:
    gp: LinearizedGP
    X: torch.Tensor
    y: torch.Tensor


def fitted(num_outputs: int = 1, likelihood="gaussian", **options) -> Case:
    generator = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, num_outputs)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    X = torch.rand(14, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(14, num_outputs, generator=generator, dtype=torch.float64)
    if likelihood == "categorical":
        y = (X[:, 0] > 0.5).long()
    gp = LinearizedGP(net, likelihood, **{"mean": "refit", **options})
    return Case(gp.fit(X, y, progress=False), X, y)


def mll_of(gp: LinearizedGP) -> LaplaceMarginalLogLikelihood:
    return LaplaceMarginalLogLikelihood(gp.likelihood, gp)


def test_parameters_are_the_hyperparameters():
    gp = fitted().gp
    names = [name for name, _ in gp.named_parameters()]
    assert names == ["prior.raw_precision", "likelihood.raw_noise"]
    assert [name for name, _ in gp.named_hyperparameters()] == names
    assert isinstance(gp, gpytorch.models.GP)


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_loss_is_that_of_the_prior_with_noise(num_outputs):
    """For a refitted mean and Gaussian noise the evidence is the density of a Gaussian: of what
    GPyTorch makes of train-mode output and noise, with all its derivatives."""
    case = fitted(num_outputs)
    gp, y = case.gp.train(), case.y
    prior = gp(case.X)
    assert isinstance(prior, gpytorch.distributions.MultitaskMultivariateNormal) == (
        num_outputs > 1
    )
    covariance = prior.lazy_covariance_matrix.to_dense()
    covariance = covariance + gp.likelihood.noise * torch.eye(len(covariance)).double()
    dense = torch.distributions.MultivariateNormal(prior.mean.flatten(), covariance)
    expected = dense.log_prob(y.flatten()) / y.numel()
    found = mll_of(gp)(prior, y if num_outputs > 1 else y.squeeze(1))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    parameters = list(gp.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(found, parameters),
        torch.autograd.grad(expected, parameters),
        rtol=1e-8,
        atol=1e-10,
    )


def test_any_torch_optimizer_trains_it():
    case = fitted()
    gp, mll = case.gp.train(), mll_of(case.gp)
    optimizer = torch.optim.LBFGS(gp.parameters(), lr=0.5, max_iter=100)

    def closure():
        optimizer.zero_grad()
        loss = -mll(gp(case.X), case.y)
        loss.backward()
        return loss

    optimizer.step(closure)
    best = fitted().gp
    best.optimize_hyperparameters()
    torch.testing.assert_close(
        gp.log_marginal_likelihood(), best.log_marginal_likelihood(), rtol=1e-6, atol=0
    )
    gp.eval()
    torch.testing.assert_close(gp(case.X).mean, best(case.X).mean, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_fit_gpytorch_mll(likelihood):
    fit_gpytorch_mll = pytest.importorskip("botorch.fit").fit_gpytorch_mll
    options = {} if likelihood == "gaussian" else {"num_outputs": 2, "mean": "network"}
    case = fitted(likelihood=likelihood, **options)
    before = case.gp.evidence().value
    fit_gpytorch_mll(mll_of(case.gp))
    assert not case.gp.training
    best = fitted(likelihood=likelihood, **options).gp
    best.optimize_hyperparameters(objective="evidence", method="l-bfgs")
    found, expected = (g.evidence().value for g in (case.gp, best))
    assert found > before
    assert found == pytest.approx(expected, rel=1e-6)


def test_priors_on_hyperparameters_count():
    case = fitted()
    gp = case.gp.train()
    plain = mll_of(gp)(gp(case.X), case.y)
    density = gpytorch.priors.NormalPrior(0.0, 2.0)
    gp.prior.register_prior("scale", density, "raw_precision")
    expected = plain + density.log_prob(gp.prior.raw_precision).sum() / case.y.numel()
    found = mll_of(gp)(gp(case.X), case.y)
    # the density computes in float32
    torch.testing.assert_close(found, expected.double(), rtol=1e-6, atol=0)


def test_modes():
    case = fitted(2)
    gp = case.gp
    posterior = gp(case.X)
    torch.testing.assert_close(posterior.mean, gp.posterior(case.X).mean, rtol=0, atol=0)
    prior = gp.train()(case.X)
    assert bool((prior.variance > posterior.variance).all())
    with gpytorch.settings.prior_mode(True):
        torch.testing.assert_close(gp.eval()(case.X).variance, prior.variance)
    torch.testing.assert_close(gp(case.X).variance, posterior.variance, rtol=0, atol=0)


def test_prior_is_there_before_fit():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    gp = LinearizedGP(net, prior=2.0).train()
    X = torch.rand(5, 2)
    dense = lingp.NTKernel.from_model(net.double(), prior=2.0)(X.double()).to_dense()
    torch.testing.assert_close(gp(X).covariance_matrix, dense)


def test_state_dict():
    one, other = fitted(), fitted()
    one.gp.optimize_hyperparameters()
    other.gp.load_state_dict(one.gp.state_dict())
    a, b = (case.gp.predict(one.X) for case in (one, other))
    torch.testing.assert_close(a.variance, b.variance, rtol=0, atol=0)
    twin = copy.deepcopy(one.gp)
    twin.prior.precision = 3.0
    assert one.gp.prior.precision.item() != pytest.approx(3.0)


def test_training_data_as_gpytorch_has_them():
    case = fitted()
    torch.testing.assert_close(case.gp.train_inputs[0], case.X, rtol=0, atol=0)
    torch.testing.assert_close(case.gp.train_targets, case.y, rtol=0, atol=0)
    batches = [(case.X[:5], case.y[:5]), (case.X[5:], case.y[5:])]
    gp = LinearizedGP(nn.Linear(2, 1)).fit(batches)
    torch.testing.assert_close(gp.train_inputs[0], case.X, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_structured_training_inputs_are_joined(kind):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, a, b):
            return self.layer(a + b)

    parts = torch.rand(2, 6, 2)
    whole = dict(zip("ab", parts, strict=True)) if kind is dict else kind(parts)

    def rows(here):
        return (
            {k: v[here] for k, v in whole.items()} if kind is dict else kind(v[here] for v in whole)
        )

    y = torch.rand(6, 1)
    gp = LinearizedGP(Sum()).fit([(rows(slice(0, 4)), y[:4]), (rows(slice(4, 6)), y[4:])])
    (joined,) = gp.train_inputs
    assert type(joined) is kind
    torch.testing.assert_close(joined, whole)
    gp.train()
    mll_of(gp)(gp(*gp.train_inputs), gp.train_targets).backward()
    assert gp.prior.raw_precision.grad is not None


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_likelihood_of_the_output_adds_noise(num_outputs):
    case = fitted(num_outputs)
    found = case.gp.likelihood(case.gp(case.X))
    expected = case.gp.predict_joint(case.X)
    assert type(found) is type(case.gp(case.X))
    torch.testing.assert_close(found.mean.view(14, -1), expected.mean)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance)
    torch.testing.assert_close(
        found.log_prob(case.y if num_outputs > 1 else case.y.squeeze(1)),
        expected.log_prob(case.y),
        rtol=1e-8,
        atol=0,
    )


def test_known_noise_is_bound_before_it_is_added():
    case = fitted()
    known = torch.linspace(0.1, 0.5, 14, dtype=torch.float64).unsqueeze(1)
    gp = LinearizedGP(nn.Linear(2, 1), lingp.likelihoods.KnownNoiseGaussian())
    gp.fit(case.X, torch.stack([case.y, known], -1))
    found = gp.likelihood.at(known)(gp(case.X))
    expected = gp.predict_joint(case.X, known=known).covariance
    torch.testing.assert_close(found.covariance_matrix, expected)
    with pytest.raises(ValueError, match="known: the noise variance of each target"):
        gp.likelihood(gp(case.X))


def test_tempering_is_a_matter_of_inference():
    case = fitted(likelihood=lingp.likelihoods.Tempered("gaussian", 0.5))
    posterior = case.gp(case.X)
    torch.testing.assert_close(
        case.gp.likelihood(posterior).variance,
        posterior.variance + case.gp.likelihood.likelihood.noise,
    )


def test_labels_have_no_normal_distribution():
    case = fitted(2, "categorical", mean="network")
    with pytest.raises(TypeError, match=r"call gp\.predict"):
        case.gp.likelihood(case.gp(case.X))


def test_what_a_loss_refuses():
    case = fitted()
    gp = case.gp.train()
    with pytest.raises(ValueError, match="likelihood: is another object"):
        LaplaceMarginalLogLikelihood(lingp.likelihoods.Gaussian(), gp)
    mll = mll_of(gp)
    with pytest.raises(ValueError, match="target: got shape"):
        mll(gp(case.X), case.y + 1)
    with pytest.raises(ValueError, match="target: got shape"):
        mll(gp(case.X[:3]), case.y[:3])
    with pytest.raises(ValueError, match="output: is of 3 values"):
        mll(gp(case.X[:3]), case.y)


def test_it_stays_where_it_is():
    gp = fitted().gp
    assert gp.double() is gp
    with pytest.raises(RuntimeError, match="stays where its network and data are"):
        gp.float()


def test_interrupted_changes_leave_the_modules_as_they_were():
    case = fitted()
    prior, likelihood = case.gp.prior, case.gp.likelihood
    mean = case.gp.predict(case.X).mean
    with pytest.raises(ValueError, match="rows"):
        case.gp.remove_data(torch.arange(14))
    assert case.gp.prior is prior
    assert case.gp.likelihood is likelihood
    torch.testing.assert_close(case.gp.predict(case.X).mean, mean, rtol=0, atol=0)


def test_exchanged_modules_are_checked_at_once():
    gp = fitted().gp
    gp.prior = 3.0
    assert float(gp.prior.precision) == pytest.approx(3.0)
    with pytest.raises(ValueError, match="already belongs to a network"):
        gp.prior = fitted(2).gp.prior
    with pytest.raises(ValueError, match="likelihood"):
        gp.likelihood = "gausian"
