"""Tempered likelihoods: what is scaled, what isn't, and what the evidence makes of it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from lingp.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Ordinal,
    Tempered,
    UniformRoot,
)


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def squared(root):
    eye = torch.eye(root.rank, dtype=torch.float64).expand(root.num_data, -1, -1)
    return root.apply(root.t_apply(torch.eye(root.num_outputs).double().expand_as(eye)))


@pytest.mark.parametrize("make", [Bernoulli, lambda: Ordinal(3), lambda: Gaussian(0.3)])
def test_inference_is_tempered(make):
    wrapped, likelihood = make(), Tempered(make(), 2.5)
    y, f = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double(), tensor(2, 2)
    close = torch.testing.assert_close
    close(likelihood.log_prob(y, f), wrapped.log_prob(y, f) / 2.5)
    close(likelihood.residual(y, f), wrapped.residual(y, f) / 2.5)
    expected = squared(wrapped.curvature_root(y, f)) / 2.5
    close(squared(likelihood.curvature_root(y, f)), expected)


def test_targets_moments_samples_and_predictive_are_those_of_the_likelihood():
    wrapped, likelihood = Categorical(), Tempered("categorical", 0.1)
    mean, root = tensor(4, 3), tensor(4, 3, 3, seed=1)
    assert likelihood.methods == wrapped.methods
    assert likelihood.allows_missing
    assert likelihood.target_shape((5, 3)) == (5,)
    assert likelihood.moment_shape((5, 3)) == (5, 3)
    assert likelihood.num_labels((3,)) == 3
    with pytest.raises(ValueError, match=r"class labels 0..2"):
        likelihood.check_targets(torch.tensor([3]), (3,), torch.float64)
    for name in ("conditional_mean", "conditional_variance"):
        assert torch.equal(getattr(likelihood, name)(mean), getattr(wrapped, name)(mean))
    draws = [
        x.sample(mean, generator=torch.Generator().manual_seed(0)) for x in (likelihood, wrapped)
    ]
    assert torch.equal(*draws)
    tempered, plain = (
        x.predictive(
            mean,
            root @ root.mT,
            "monte_carlo",
            num_samples=50,
            generator=torch.Generator().manual_seed(0),
        )
        for x in (likelihood, wrapped)
    )
    assert torch.equal(tempered.mean, plain.mean)
    with pytest.raises(ValueError, match="method: Categorical"):
        likelihood.predictive(mean, root @ root.mT, "exact")


def test_a_tempered_gaussian_is_a_gaussian_of_more_noise_to_inference():
    likelihood, noisier = Tempered(Gaussian([0.1, 0.4]), 3.0), Gaussian([0.3, 1.2])
    assert likelihood.is_quadratic
    assert isinstance(likelihood, Tempered)
    y, f = tensor(5, 2), tensor(5, 2, seed=1)
    close = torch.testing.assert_close
    close(likelihood.residual(y, f), noisier.residual(y, f))
    close(likelihood.whitened_residual(y, f), noisier.whitened_residual(y, f))
    close(squared(likelihood.curvature_root(y, f)), squared(noisier.curvature_root(y, f)))
    assert isinstance(Tempered(Gaussian(0.1), 3.0).curvature_root(y, f), UniformRoot)
    assert not Tempered("bernoulli").is_quadratic


def test_tempering_twice_multiplies():
    once, twice = Tempered(Gaussian(0.3), 6.0), Tempered(Tempered(Gaussian(0.3), 2.0), 3.0)
    y, f = tensor(5, 2), tensor(5, 2, seed=1)
    torch.testing.assert_close(twice.log_prob(y, f), once.log_prob(y, f))
    torch.testing.assert_close(twice.whitened_residual(y, f), once.whitened_residual(y, f))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("make", [Gaussian, Categorical])
def test_copies_are_of_the_same_kind(copied, make):
    likelihood = Tempered(make(), 2.0, learn=True)
    other = copied(likelihood)
    assert type(other) is type(likelihood)
    assert other.temperature.item() == pytest.approx(2.0)
    other.temperature = 3.0
    assert likelihood.temperature.item() == pytest.approx(2.0)


def test_temperature_is_a_hyperparameter_that_is_learnt_only_on_request():
    fixed, learnt = Tempered(Gaussian(0.3), 2.0), Tempered(Gaussian(0.3), 2.0, learn=True)
    assert {n for n, p in fixed.named_parameters() if p.requires_grad} == {"likelihood.raw_noise"}
    assert learnt.raw_temperature.requires_grad
    assert "temperature=2" in repr(fixed)
    y, f = tensor(5, 2), tensor(5, 2, seed=1)
    value = learnt.log_prob(y, f).sum()
    (gradient,) = torch.autograd.grad(value, learnt.raw_temperature)
    assert gradient.item() == pytest.approx(-value.item())  # d/dlog T of 1/T
    with pytest.raises(ValueError, match="temperature: expected finite positive"):
        Tempered("bernoulli", 0.0)
    with pytest.raises(ValueError, match="temperature: expected one number"):
        Tempered("bernoulli", [1.0, 2.0])
    with pytest.raises(TypeError, match="likelihood: expected a name"):
        Tempered(3.0)
    with pytest.raises(ValueError, match="'normal' is not known"):
        Tempered("normal")


def test_the_evidence_of_labels_grows_with_the_temperature():
    """Why it isn't learnt: a sum of two terms that both grow, for any network and data."""
    jacobian, f = tensor(20, 3, 8), 2 * tensor(20, 3, seed=1)
    y = (torch.arange(20) % 3).double().unsqueeze(-1)
    evidence = []
    for temperature in (0.1, 1.0, 10.0, 1e3):
        likelihood = Tempered("categorical", temperature)
        phi = likelihood.curvature_root(y, f).t_apply(jacobian).flatten(0, 1)  # (N·K, P)
        log_det = torch.logdet(torch.eye(8).double() + phi.mT @ phi)
        evidence.append((likelihood.log_prob(y, f).sum() - 0.5 * log_det).item())
    assert evidence == sorted(evidence)
    assert -1.0 < evidence[-1] < 0.0
