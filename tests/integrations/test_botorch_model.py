"""The BoTorch model: posteriors, gradients, batches, transforms, acquisition functions."""

import copy
import importlib
import re
import sys
import warnings

import pytest
import torch
from botorch_cases import D, N, fitted, network, rows, values

import lingp
from lingp.inference.factorize import RoundingWarning
from lingp.likelihoods import (
    Bernoulli,
    CorrelatedGaussian,
    Gaussian,
    Heteroscedastic,
    KnownNoiseGaussian,
)
from lingp.models.latents import Latents
from lingp.priors import Diagonal, Layerwise, UnitWise

pytest.importorskip("botorch", reason="BoTorch is not installed")

from botorch.models.transforms import Normalize, Standardize
from botorch.posteriors.gpytorch import GPyTorchPosterior

from lingp.integrations.botorch import LinearizedGPModel
from lingp.integrations.botorch.model import SampledCovariance

EXACT = ("weight_space", "function_space")


def jacobian(net, x):
    """J (n, C, P), by differentiating one output after the other."""
    found = []
    for row in x:
        out = net(row)
        found.append(
            torch.stack(
                [
                    torch.cat(
                        [
                            g.flatten()
                            for g in torch.autograd.grad(o, net.parameters(), retain_graph=True)
                        ]
                    )
                    for o in out
                ]
            )
        )
    return torch.stack(found)


def dense(net, x, y, noise, precision, at, mean):
    """Posterior of f at `at`, (k·C,) and (k·C, k·C), from the formulas written out."""
    J, Js = jacobian(net, x).flatten(0, 1), jacobian(net, at).flatten(0, 1)
    P = J.shape[1]
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    covariance = torch.linalg.inv(precision * torch.eye(P, dtype=J.dtype) + J.T @ J / noise)
    location = net(at).detach().flatten()
    if mean == "refit":
        residual = (y - net(x).detach()).flatten() + J @ weights
        location = location + Js @ (covariance @ (J.T @ residual) / noise - weights)
    return location, Js @ covariance @ Js.T


@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize("inference", EXACT)
@pytest.mark.parametrize("outputs", [1, 2])
def test_posterior_is_the_dense_formula(inference, outputs, mean):
    gp = fitted(outputs, inference=inference, mean=mean)
    at = rows(4, seed=2)
    posterior = LinearizedGPModel(gp).posterior(at)
    location, covariance = dense(
        network(outputs), rows(N), values(rows(N), outputs), 0.05, 2.0, at, mean
    )
    assert posterior.mean.shape == (4, outputs)
    torch.testing.assert_close(posterior.mean.flatten(), location, rtol=1e-9, atol=1e-9)
    found = posterior.distribution.covariance_matrix
    torch.testing.assert_close(found, covariance, rtol=1e-9, atol=1e-10)
    variance = covariance.diagonal().view(4, outputs)
    torch.testing.assert_close(posterior.variance, variance, rtol=1e-9, atol=1e-10)


METHODS = {
    "weight_space": "weight_space",
    "function_space": "function_space",
    "sparse": lingp.Sparse(num_inducing=5),
    "iterative": lingp.Iterative(tolerance=1e-10),
}


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("path", ["columns", "factors"])
@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_those_of_finite_differences(name, path, outputs, monkeypatch):
    if path == "factors":
        monkeypatch.setattr("lingp.integrations.botorch.latent._MOST_ROWS", 0)
    model = LinearizedGPModel(fitted(outputs, inference=METHODS[name]))
    x = rows(2, 2, seed=3).requires_grad_()

    def moments(x):
        posterior = model.posterior(x)
        return posterior.mean, posterior.distribution.covariance_matrix

    assert torch.autograd.gradcheck(moments, x, eps=1e-6, atol=1e-6, rtol=1e-5)
    assert torch.autograd.gradcheck(lambda x: moments(x[:, :1]), x, eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("inference", EXACT)
def test_gradients_past_the_rounding_limit(inference):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingWarning)
        gp = fitted(likelihood=Gaussian(1e-13), inference=inference)
        assert gp.laplace.posterior().factorization.from_qr
    model, x = LinearizedGPModel(gp), rows(2, 2, seed=3).requires_grad_()

    def moments(x):
        posterior = model.posterior(x)
        return posterior.mean, posterior.distribution.covariance_matrix

    assert torch.autograd.gradcheck(moments, x, eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("prior", [Layerwise, UnitWise, Diagonal])
def test_gradients_with_other_priors(prior, monkeypatch):
    monkeypatch.setattr("lingp.integrations.botorch.latent._MOST_ROWS", 0)
    model = LinearizedGPModel(fitted(prior=prior(1.5)))
    x = rows(2, 1, seed=3).requires_grad_()

    def moments(x):
        posterior = model.posterior(x)
        return posterior.mean, posterior.variance

    assert torch.autograd.gradcheck(moments, x, eps=1e-6, atol=1e-6, rtol=1e-5)
    assert torch.autograd.gradcheck(moments, x.transpose(0, 1), eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_both_paths_agree(name, monkeypatch):
    model, x = LinearizedGPModel(fitted(2, inference=METHODS[name])), rows(3, 2, seed=4)
    fast = model.posterior(x)
    monkeypatch.setattr("lingp.integrations.botorch.latent._MOST_ROWS", 0)
    slow = model.posterior(x)
    torch.testing.assert_close(fast.mean, slow.mean, rtol=1e-9, atol=1e-9)
    found = (fast.distribution.covariance_matrix, slow.distribution.covariance_matrix)
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-10)


def test_many_groups_are_taken_in_several_pieces(monkeypatch):
    gp, x = fitted(2), rows(5 * 3, seed=5)
    whole = Latents(gp.laplace, 1e9).groups(x, 3)
    monkeypatch.setattr("lingp.models.latents._SIDE", 12)
    pieces = Latents(gp.laplace, 1e9).groups(x, 3)
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert whole[0].shape == (5, 3, 2)
    assert whole[1].shape == (5, 6, 6)


@pytest.mark.parametrize("outputs", [1, 2])
def test_batches_are_a_loop(outputs):
    model, x = LinearizedGPModel(fitted(outputs)), rows(2, 3, 4, seed=6)
    posterior = model.posterior(x)
    assert posterior.mean.shape == (2, 3, 4, outputs)
    assert model.batch_shape == ()
    assert model.num_outputs == outputs
    for i in range(2):
        for j in range(3):
            alone = model.posterior(x[i, j])
            torch.testing.assert_close(posterior.mean[i, j], alone.mean)
            torch.testing.assert_close(
                posterior.distribution.covariance_matrix[i, j],
                alone.distribution.covariance_matrix,
                rtol=1e-9,
                atol=1e-12,
            )


def test_it_follows_the_gp():
    gp = fitted()
    model, x = LinearizedGPModel(gp), rows(2, seed=7)
    before = model.posterior(x).variance
    gp.likelihood.noise = 0.5
    after = model.posterior(x).variance
    assert (after > before).all()
    torch.testing.assert_close(
        after, LinearizedGPModel(fitted(likelihood=Gaussian(0.5))).posterior(x).variance
    )


def test_subset_and_output_indices():
    model, x = (
        LinearizedGPModel(fitted(3), outcome_transform=trained_standardize(3)),
        rows(2, 4, seed=8),
    )
    whole = model.posterior(x)
    covariance = whole.distribution.covariance_matrix.view(2, 4, 3, 4, 3)
    for some in (
        model.posterior(x, output_indices=[2, 0]),
        model.subset_output([2, 0]).posterior(x),
    ):
        torch.testing.assert_close(some.mean, whole.mean[..., [2, 0]])
        expected = covariance[..., [2, 0]][:, :, [2, 0]].reshape(2, 8, 8)
        torch.testing.assert_close(some.distribution.covariance_matrix, expected)
    one = model.subset_output([1])
    assert one.num_outputs == 1
    assert not one.posterior(x)._is_mt
    torch.testing.assert_close(one.posterior(x).mean, whole.mean[..., [1]])
    twice = model.subset_output([2, 0]).subset_output([1])
    torch.testing.assert_close(twice.posterior(x).mean, whole.mean[..., [0]])
    with pytest.raises(ValueError, match=r"output_indices: .*3 outputs"):
        model.posterior(x, output_indices=[3])


def trained_standardize(outputs):
    transform = Standardize(outputs)
    transform(10 + 3 * values(rows(N), outputs))
    return transform.eval()


@pytest.mark.parametrize("outputs", [1, 2])
def test_transforms(outputs):
    raw = torch.tensor([[0.0, -5, 100], [2, 5, 400]], dtype=torch.float64)
    inputs = Normalize(D, bounds=raw)
    plain = LinearizedGPModel(fitted(outputs))
    model = LinearizedGPModel(
        plain.gp, input_transform=inputs, outcome_transform=trained_standardize(outputs)
    )
    x = rows(2, 3, seed=9)
    there = raw[0] + (raw[1] - raw[0]) * x
    y = 10 + 3 * values(rows(N), outputs)
    mean, std = y.mean(0), y.std(0)
    posterior, standard = model.posterior(there), plain.posterior(x)
    torch.testing.assert_close(posterior.mean, mean + std * standard.mean)
    torch.testing.assert_close(posterior.variance, std**2 * standard.variance)
    scale = std.repeat(3)
    expected = scale[:, None] * standard.distribution.covariance_matrix * scale
    torch.testing.assert_close(posterior.distribution.covariance_matrix, expected)
    assert isinstance(posterior.distribution.lazy_covariance_matrix, SampledCovariance)
    assert inputs.training == Normalize(D).training  # what was given stays as it was


NOISE = torch.tensor([[0.5, 0.2], [0.2, 0.4]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("likelihood", "added"),
    [
        (Gaussian([0.05, 0.3]), torch.diag(torch.tensor([0.05, 0.3], dtype=torch.float64))),
        (CorrelatedGaussian(NOISE), NOISE),
    ],
)
def test_observation_noise_of_the_likelihood(likelihood, added):
    model, x = LinearizedGPModel(fitted(2, likelihood)), rows(2, 3, seed=10)
    latent = model.posterior(x).distribution.covariance_matrix
    noisy = model.posterior(x, observation_noise=True)
    torch.testing.assert_close(
        noisy.distribution.covariance_matrix, latent + torch.block_diag(added, added, added)
    )
    one = model.subset_output([1]).posterior(x, observation_noise=True).variance
    torch.testing.assert_close(one, model.posterior(x).variance[..., [1]] + added[1, 1])


def test_observation_noise_given():
    model, x = LinearizedGPModel(fitted(2)), rows(4, 3, seed=10)
    noise = torch.rand(3, 2, dtype=torch.float64)
    found = model.posterior(x, observation_noise=noise).variance
    torch.testing.assert_close(found, model.posterior(x).variance + noise)
    found = model.posterior(x, observation_noise=noise[:1]).variance
    torch.testing.assert_close(found, model.posterior(x).variance + noise[:1])
    with pytest.raises(ValueError, match="noise: expected variances"):
        model.posterior(x, observation_noise=noise[:2])
    with pytest.raises(ValueError, match=r"noise: .*>= 0"):
        model.posterior(x, observation_noise=-noise)


def known_noise(mean="refit"):
    x = rows(N)
    variances = 0.02 + 0.1 * x[:, :1]
    y = torch.stack([values(x), variances], -1)
    gp = lingp.LinearizedGP(network(), KnownNoiseGaussian(), prior=2.0, mean=mean)
    return gp.fit(x, y, progress=False), variances


def test_known_noise_is_averaged():
    gp, variances = known_noise()
    model, x = LinearizedGPModel(gp), rows(3, seed=10)
    found = model.posterior(x, observation_noise=True).variance - model.posterior(x).variance
    torch.testing.assert_close(found, variances.mean().expand(3, 1))


def test_class_labels_have_a_latent_posterior_only():
    x = rows(N)
    gp = lingp.LinearizedGP(network(), Bernoulli(), prior=2.0)
    gp.fit(x, (values(x) > 1).double(), progress=False)
    model = LinearizedGPModel(gp)
    at = rows(3, seed=11)
    torch.testing.assert_close(model.posterior(at).variance.squeeze(), gp.posterior(at).variance)
    with pytest.raises(ValueError, match="observation_noise: the likelihood is Bernoulli"):
        model.posterior(at, observation_noise=True)
    with pytest.raises(ValueError, match=r"Bernoulli.*gp.add_data"):
        model.condition_on_observations(at, torch.ones(3, 1, dtype=torch.float64))


def test_nothing_is_touched():
    gp = fitted()
    net, state = gp.linearized.network, torch.random.get_rng_state()
    before = copy.deepcopy(net.state_dict())
    model = LinearizedGPModel(gp)
    x = rows(2, 2, seed=16).requires_grad_()
    model.posterior(x).mean.sum().backward()
    model.condition_on_observations(rows(2), values(rows(2)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert gp.laplace.training.num_data == N
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())


def test_without_gradients_there_is_no_graph():
    posterior = LinearizedGPModel(fitted()).posterior(rows(2, 2))
    assert not posterior.mean.requires_grad
    assert not posterior.distribution.covariance_matrix.requires_grad
    assert isinstance(posterior, GPyTorchPosterior)


def test_errors():
    with pytest.raises(TypeError, match=r"gp: expected a lingp\.LinearizedGP, got Sequential"):
        LinearizedGPModel(network())
    with pytest.raises(RuntimeError, match="no data yet"):
        LinearizedGPModel(lingp.LinearizedGP(network()))
    gp = lingp.LinearizedGP(network(2), Heteroscedastic(), prior=1.0)
    gp.fit(rows(N), values(rows(N)), progress=False)
    with pytest.raises(ValueError, match="gp: its likelihood is Heteroscedastic"):
        LinearizedGPModel(gp)
    model = LinearizedGPModel(fitted())
    with pytest.raises(ValueError, match=r"X: .*batch_shape x q x d.*\(3,\)"):
        model.posterior(torch.zeros(3, dtype=torch.float64))
    image = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 1)).double()
    x = torch.rand(5, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gp = lingp.LinearizedGP(image, prior=1.0).fit(x, x.sum((1, 2)), progress=False)
    with pytest.raises(ValueError, match="gp: its network doesn't take rows"):
        LinearizedGPModel(gp)


def test_without_botorch_the_error_says_what_to_install(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "botorch"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [n for n in sys.modules if n.startswith("lingp.integrations.botorch")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=re.escape('pip install "lingp[botorch]"')):
        importlib.import_module("lingp.integrations.botorch")
