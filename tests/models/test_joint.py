"""Predictions of several rows together: exact for Gaussian noise, by draws of functions else."""

from __future__ import annotations

import itertools

import pytest
import torch
from trained_networks import LIKELIHOODS, known_of, make_inputs, make_net, shared, targets_of

from lingp.likelihoods import (
    Categorical,
    CorrelatedGaussian,
    Gaussian,
    KnownNoiseGaussian,
    Tempered,
)
from lingp.models import LinearizedGP

X, X_TEST = make_inputs(12), make_inputs(5, seed=1)
Y = torch.stack([X.sum(1), X.prod(1)], 1)
Y_TEST = torch.stack([X_TEST.sum(1), X_TEST.prod(1)], 1)
NOISE = torch.tensor([[0.3, 0.1], [0.1, 0.2]], dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize(
    ("likelihood", "noise"),
    [
        (Gaussian(0.1), 0.1 * torch.eye(2, dtype=torch.float64)),
        (Gaussian([0.1, 0.4]), torch.diag(torch.tensor([0.1, 0.4], dtype=torch.float64))),
        (CorrelatedGaussian(NOISE), NOISE),
        (Tempered(Gaussian(0.1), 3.0), 0.1 * torch.eye(2, dtype=torch.float64)),
    ],
)
def test_gaussian_noise_is_one_normal_distribution(likelihood, noise, mean):
    gp = LinearizedGP(make_net(2), likelihood, mean=mean).fit(X, Y)
    joint, latent = gp.predict_joint(X_TEST), gp.posterior(X_TEST)
    covariance = latent.covariance_matrix + torch.block_diag(*[noise] * 5)
    exact = torch.distributions.MultivariateNormal(latent.mean.flatten(), covariance)
    close = torch.testing.assert_close
    close(joint.mean, latent.mean)
    close(joint.covariance, covariance)
    close(joint.log_prob(Y_TEST), exact.log_prob(Y_TEST.flatten()), rtol=1e-9, atol=0)
    assert joint.standard_error(Y_TEST) == 0
    draws = joint.sample(20_000, generator=seeded()).flatten(1)
    found = (draws - draws.mean(0)).mT @ (draws - draws.mean(0)) / len(draws)
    variance = covariance.diagonal()
    error = ((variance.outer(variance) + covariance.square()) / len(draws)).sqrt()
    assert ((found - covariance).abs() / error).max() < 5


def test_one_row_is_the_prediction_of_that_row():
    gp = LinearizedGP(make_net(2), CorrelatedGaussian(NOISE)).fit(X, Y)
    rows = gp.predict(X_TEST)
    joint = gp.predict_joint(X_TEST[:1])
    torch.testing.assert_close(joint.log_prob(Y_TEST[:1]), rows.log_prob(Y_TEST)[0])


def test_the_chain_rule_of_evidence():
    """For Gaussian noise: log p(all) = log p(first) + log p(second | first)."""
    gp = LinearizedGP(make_net(2), Gaussian(0.1), mean="refit").fit(X[:7], Y[:7])
    first = gp.log_marginal_likelihood().item()
    second = gp.predict_joint(X[7:]).log_prob(Y[7:]).item()
    gp.add_data(X[7:], Y[7:])
    assert gp.log_marginal_likelihood().item() == pytest.approx(first + second, rel=1e-9)


def test_missing_targets_are_left_out():
    gp = LinearizedGP(make_net(2), CorrelatedGaussian(NOISE)).fit(X, Y)
    joint, latent = gp.predict_joint(X_TEST), gp.posterior(X_TEST)
    y = Y_TEST.clone()
    y[0], y[2, 1] = torch.nan, torch.nan
    kept = ~y.flatten().isnan()
    exact = torch.distributions.MultivariateNormal(
        latent.mean.flatten()[kept], joint.covariance[kept][:, kept]
    )
    torch.testing.assert_close(joint.log_prob(y), exact.log_prob(y.flatten()[kept]))


def test_known_noise_comes_with_the_targets_or_with_the_prediction():
    variances = torch.linspace(0.1, 0.5, 10, dtype=torch.float64).view(5, 2)
    training = torch.stack([Y, torch.full_like(Y, 0.2)], -1)
    gp = LinearizedGP(make_net(2), KnownNoiseGaussian()).fit(X, training)
    joint = gp.predict_joint(X_TEST, known=variances)
    covariance = gp.posterior(X_TEST).covariance_matrix + torch.diag(variances.flatten())
    torch.testing.assert_close(joint.covariance, covariance)
    exact = torch.distributions.MultivariateNormal(joint.mean.flatten(), covariance)
    for y, prediction in ((Y_TEST, joint), (torch.stack([Y_TEST, variances], -1), joint)):
        torch.testing.assert_close(prediction.log_prob(y), exact.log_prob(Y_TEST.flatten()))
    with pytest.raises(ValueError, match="known: expected one number, or one for each of 5 rows"):
        gp.predict_joint(X_TEST, known=variances[:3])


def test_probabilities_of_all_label_combinations_sum_to_one():
    y = torch.arange(12) % 3
    gp = LinearizedGP(make_net(3), Categorical()).fit(X, y)
    joint = gp.predict_joint(X_TEST[:3], num_samples=2000, generator=seeded())
    combinations = torch.tensor(list(itertools.product(range(3), repeat=3)))
    probs = torch.stack([joint.log_prob(labels) for labels in combinations]).exp()
    errors = probs * torch.stack([joint.standard_error(labels) for labels in combinations])
    assert abs(probs.sum() - 1) < 5 * errors.norm()
    # moments are those of the mixture over draws
    p = joint._draws.softmax(-1)
    rows = [p[:, n, combinations[:, n]] for n in range(3)]
    mixture = (rows[0] * rows[1] * rows[2]).mean(0)
    assert ((probs - mixture).abs() < 5 * mixture / 2000**0.5).all()
    indicators = torch.nn.functional.one_hot(combinations, 3).double().flatten(1)
    mean = mixture @ indicators
    second = indicators.mT @ (mixture.unsqueeze(1) * indicators)
    torch.testing.assert_close(joint.mean.flatten(), mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        joint.covariance, second - torch.outer(mean, mean), rtol=1e-9, atol=1e-12
    )


def test_many_surprising_targets_still_have_an_estimate():
    """Where draws of the function almost never explain the targets."""
    x = make_inputs(40, seed=2)
    gp = LinearizedGP(make_net(1), "poisson", prior=0.1).fit(X, torch.arange(12) % 4)
    joint = gp.predict_joint(x, num_samples=2000, generator=seeded())
    y = 3 * (x[:, 0] > 0).long() + 5
    again = gp.predict_joint(x, num_samples=2000, generator=seeded(1))
    plain = gp.likelihood.log_prob(y.double().unsqueeze(1), joint._draws).sum(-1)
    assert joint.standard_error(y) < 0.1
    assert abs(joint.log_prob(y) - again.log_prob(y)) < 0.5
    spread = (plain - plain.max()).exp()
    assert spread.std() / spread.mean() > 10 * 2000**0.5 * joint.standard_error(y)


@pytest.mark.parametrize("name", ["poisson", "categorical-3", "heteroscedastic"])
def test_draws_agree_with_one_row_by_quadrature(name):
    case = next(c for c in LIKELIHOODS if c.name.startswith(name))
    gp = shared(case.name)
    y = targets_of(case, 1, seed=3)
    joint = gp.predict_joint(X_TEST[:1], num_samples=20_000, generator=seeded())
    exact = gp.predict(X_TEST[:1], generator=seeded(1), num_samples=20_000).log_prob(y).item()
    assert abs(joint.log_prob(y).item() - exact) < 5 * joint.standard_error(y).item() + 1e-6


def test_the_standard_error_is_that_of_repeated_estimates():
    y = (X_TEST.sum(1) > 0).long()
    gp = LinearizedGP(make_net(1), "bernoulli").fit(X, (X.sum(1) > 0).long())
    joints = [gp.predict_joint(X_TEST, num_samples=100, generator=seeded(i)) for i in range(100)]
    spread = torch.stack([joint.log_prob(y) for joint in joints]).std()
    claimed = torch.stack([joint.standard_error(y) for joint in joints]).mean()
    assert 0.7 < (spread / claimed).item() < 1.4


@pytest.mark.filterwarnings("ignore::lingp.inference.RoundingWarning")
@pytest.mark.parametrize("case", LIKELIHOODS, ids=str)
def test_every_likelihood(case):
    gp = shared(case.name)
    y = targets_of(case, 5, seed=1)
    known = known_of(case, y)
    state = torch.get_rng_state()
    made = [
        gp.predict_joint(X_TEST, known=known, num_samples=64, generator=seeded()) for _ in range(2)
    ]
    joint = made[0]
    size = joint.mean.numel()
    assert joint.mean.shape == (5, *case.make().moment_shape(case.output_shape))
    assert joint.covariance.shape == (size, size)
    assert torch.linalg.eigvalsh(joint.covariance).min() > -1e-9 * joint.covariance.abs().max()
    assert joint.log_prob(y).dim() == 0
    assert not joint.log_prob(y).isnan()
    assert joint.standard_error(y) >= 0
    draws = [prediction.sample(3, generator=seeded(1)) for prediction in made]
    assert draws[0].shape[:2] == (3, 5)
    assert torch.equal(*draws)
    assert torch.equal(made[0].log_prob(y), made[1].log_prob(y))
    assert torch.equal(torch.get_rng_state(), state)
    assert "5 rows" in repr(joint)


def test_a_prediction_keeps_its_hyperparameters():
    gp = LinearizedGP(make_net(2), Gaussian(0.1)).fit(X, Y)
    joint = gp.predict_joint(X_TEST)
    before = joint.log_prob(Y_TEST)
    gp.likelihood.noise = 3.0
    assert torch.equal(joint.log_prob(Y_TEST), before)
    assert not before.requires_grad


def test_wrong_numbers_are_named():
    gp = LinearizedGP(make_net(1), "bernoulli").fit(X, (X.sum(1) > 0).long())
    with pytest.raises(ValueError, match="num_samples: expected at least 2"):
        gp.predict_joint(X_TEST, num_samples=1)
    with pytest.raises(ValueError, match="num_samples: expected at least 1"):
        gp.predict_joint(X_TEST).sample(0)
    with pytest.raises(ValueError, match="known: Bernoulli has no known quantity"):
        gp.predict_joint(X_TEST, known=1.0)
    with pytest.raises(ValueError, match="5 rows predicted"):
        gp.predict_joint(X_TEST).log_prob(torch.ones(3))
