"""More observations: the model against a refit on all data, in batches, with any noise."""

import pytest
import torch
from botorch_cases import D, network, rows, values

import lingp
from lingp.likelihoods import CorrelatedGaussian, Gaussian, KnownNoiseGaussian
from lingp.priors import Isotropic

pytest.importorskip("botorch", reason="BoTorch is not installed")

from botorch.models.transforms import Normalize, Standardize
from botorch.sampling import SobolQMCNormalSampler

from lingp.integrations.botorch import LinearizedGPModel

N = 9


def fitted(x, y, likelihood=None, **options):
    gp = lingp.LinearizedGP(
        network(y.shape[1]),
        likelihood or Gaussian(0.03),
        **{"mean": "refit", "prior": 1.5, **options},
    )
    return gp.fit(x, y, progress=False)


X, NEW, AT = rows(N, seed=1), rows(4, seed=2), rows(3, seed=3)


def assert_same(found, expected, tolerance=1e-8):
    torch.testing.assert_close(found.mean, expected.mean, rtol=tolerance, atol=tolerance)
    matrices = (p.distribution.covariance_matrix for p in (found, expected))
    torch.testing.assert_close(*matrices, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("inference", ["weight_space", "function_space"])
@pytest.mark.parametrize("batched", [False, True])
def test_it_is_a_refit_on_all_data(batched, inference, outputs):
    model = LinearizedGPModel(fitted(X, values(X, outputs), inference=inference))
    refit = fitted(torch.cat([X, NEW]), values(torch.cat([X, NEW]), outputs), inference=inference)
    before = model.posterior(AT)
    shape = (1,) if batched else ()
    after = model.condition_on_observations(
        NEW.expand(*shape, 4, D), values(NEW, outputs).expand(*shape, 4, outputs)
    )
    assert after.batch_shape == shape
    found = after.posterior(AT.expand(*shape, 3, D))
    expected = LinearizedGPModel(refit).posterior(AT.expand(*shape, 3, D))
    assert_same(found, expected)
    assert_same(model.posterior(AT), before, 0)


def test_one_after_the_other_is_all_at_once():
    model = LinearizedGPModel(fitted(X, values(X)))
    y = values(NEW)
    once = model.condition_on_observations(NEW[None], y[None]).posterior(AT)
    first = model.condition_on_observations(NEW[None, :1], y[None, :1])
    assert_same(first.condition_on_observations(NEW[None, 1:], y[None, 1:]).posterior(AT), once)
    joined = model.condition_on_observations(NEW[:1], y[:1])
    assert_same(joined.condition_on_observations(NEW[None, 1:], y[None, 1:]).posterior(AT), once)


def test_batches_are_a_loop():
    model = LinearizedGPModel(fitted(X, values(X, 2)))
    x, generator = rows(2, 3, seed=4), torch.Generator().manual_seed(0)
    y = torch.randn(5, 2, 3, 2, generator=generator, dtype=torch.float64)
    batch = model.condition_on_observations(x, y)
    assert batch.batch_shape == (5, 2)
    found = batch.posterior(AT)
    assert found.mean.shape == (5, 2, 3, 2)
    at = rows(2, 3, seed=5)
    other = batch.posterior(at)
    for i in range(5):
        for j in range(2):
            alone = model.condition_on_observations(x[j], y[i, j])
            expected = alone.posterior(AT)
            torch.testing.assert_close(found.mean[i, j], expected.mean, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(
                found.distribution.covariance_matrix[i, j],
                expected.distribution.covariance_matrix,
                rtol=1e-8,
                atol=1e-9,
            )
            torch.testing.assert_close(
                other.mean[i, j], alone.posterior(at[j]).mean, rtol=1e-8, atol=1e-8
            )


def test_a_batch_of_values_at_the_same_points():
    model = LinearizedGPModel(fitted(X, values(X)))
    y = torch.randn(3, 4, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = model.condition_on_observations(NEW, y)
    assert batch.batch_shape == (3,)
    for i in range(3):
        alone = model.condition_on_observations(NEW, y[i]).posterior(AT)
        torch.testing.assert_close(batch.posterior(AT).mean[i], alone.mean, rtol=1e-8, atol=1e-8)


def test_batches_of_batches():
    model = LinearizedGPModel(fitted(X, values(X)))
    generator = torch.Generator().manual_seed(0)
    first, second = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((2, 3, 1), (4, 2, 1, 1))
    )
    x, z = rows(2, 3, seed=4), rows(4, 2, 1, seed=5)
    found = model.condition_on_observations(x, first).condition_on_observations(z, second)
    assert found.batch_shape == (4, 2)
    alone = model.condition_on_observations(
        torch.cat([x[1], z[3, 1]]), torch.cat([first[1], second[3, 1]])
    )
    expected = alone.posterior(AT).mean
    torch.testing.assert_close(found.posterior(AT).mean[3, 1], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("noise", ["other", "correlated", "known"])
def test_noise(noise):
    x, y, outputs = torch.cat([X, NEW]), values(torch.cat([X, NEW]), 2), 2
    variances = 0.02 + 0.1 * torch.cat([X, NEW])[:, :outputs]
    given = None
    if noise == "correlated":
        sigma = torch.tensor([[0.05, 0.03], [0.03, 0.04]], dtype=torch.float64)
        base = fitted(X, values(X, 2), CorrelatedGaussian(sigma))
        refit = fitted(x, y, CorrelatedGaussian(sigma))
    else:
        if noise == "other":  # noise of another size than the likelihood's, row by row
            variances[:N] = 0.03
            base = fitted(X, values(X, 2))
        else:
            pairs = torch.stack([values(X, 2), variances[:N]], -1)
            base = lingp.LinearizedGP(network(2), KnownNoiseGaussian(), prior=1.5, mean="refit")
            base.fit(X, pairs, progress=False)
        refit = lingp.LinearizedGP(network(2), KnownNoiseGaussian(), prior=1.5, mean="refit")
        refit.fit(x, torch.stack([y, variances], -1), progress=False)
        given = variances[N:]
    # twice in the batch, where the likelihood would take them as rows of its data
    shape = (2, 4, outputs)
    batch = LinearizedGPModel(base).condition_on_observations(
        NEW.expand(2, 4, D), values(NEW, 2).expand(shape), noise=given
    )
    expected = LinearizedGPModel(refit).posterior(AT.expand(2, 3, D))
    assert_same(batch.posterior(AT.expand(2, 3, D)), expected)


def test_the_networks_own_mean_learns_too():
    """It moves as the mean of a Gaussian process does: C*n (Cnn + σ²)⁻¹ (y - m_n)."""
    gp = fitted(X, values(X), mean="network")
    model = LinearizedGPModel(gp)
    after = model.condition_on_observations(NEW, values(NEW)).posterior(AT)
    joint = gp.posterior(torch.cat([AT, NEW]))
    mean, covariance = joint.mean, joint.covariance_matrix
    noisy = covariance[3:, 3:] + 0.03 * torch.eye(4, dtype=torch.float64)
    gain = torch.linalg.solve(noisy, covariance[3:, :3]).T
    expected = mean[:3] + gain @ (values(NEW).squeeze() - mean[3:])
    torch.testing.assert_close(after.mean.squeeze(), expected, rtol=1e-9, atol=1e-9)
    expected = covariance[:3, :3] - gain @ covariance[3:, :3]
    torch.testing.assert_close(after.distribution.covariance_matrix, expected, rtol=1e-8, atol=1e-9)


def test_transforms():
    bounds = torch.tensor([[-1.0, 10, 0], [1, 30, 2]], dtype=torch.float64)
    inputs, outcomes = Normalize(D, bounds=bounds), Standardize(1)
    raw = values(torch.cat([X, NEW])) * 5 + 40
    y = outcomes(raw[:N])[0]
    outcomes.eval()
    new = outcomes(raw[N:])[0]
    model = LinearizedGPModel(fitted(X, y), input_transform=inputs, outcome_transform=outcomes)
    there = bounds[0] + (bounds[1] - bounds[0]) * torch.cat([NEW, AT])
    refit = fitted(torch.cat([X, NEW]), torch.cat([y, new]))
    expected = LinearizedGPModel(
        refit, input_transform=inputs, outcome_transform=outcomes
    ).posterior(there[4:])
    for shape in ((), (1,)):
        after = model.condition_on_observations(
            there[:4].expand(*shape, 4, D), raw[N:].expand(*shape, 4, 1)
        )
        found = after.posterior(there[4:])
        torch.testing.assert_close(found.mean.reshape(3, 1), expected.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(
            found.variance.reshape(3, 1), expected.variance, rtol=1e-7, atol=1e-8
        )


def test_some_outputs():
    """Of a model of one output, the other tells nothing: its values are missing."""
    base = fitted(X, values(X, 2))
    model = LinearizedGPModel(base).subset_output([1])
    after = model.condition_on_observations(NEW, values(NEW, 2)[:, 1:])
    y = values(torch.cat([X, NEW]), 2)
    y[N:, 0] = float("nan")
    refit = lingp.LinearizedGP(network(2), Gaussian(0.03), prior=1.5, mean="refit")
    refit.fit(torch.cat([X, NEW]), y, missing="nan", progress=False)
    assert_same(after.posterior(AT), LinearizedGPModel(refit).subset_output([1]).posterior(AT))


@pytest.mark.parametrize("outputs", [1, 2])
def test_fantasies(outputs):
    model = LinearizedGPModel(fitted(X, values(X, outputs)))
    x = rows(3, 2, seed=6)
    sampler = SobolQMCNormalSampler(torch.Size([5]), seed=0)
    fantasies = model.fantasize(x, sampler)
    assert fantasies.batch_shape == (5, 3)
    drawn = SobolQMCNormalSampler(torch.Size([5]), seed=0)(
        model.posterior(x, observation_noise=True)
    )
    expected = model.condition_on_observations(x[1], drawn[4, 1]).posterior(AT).mean
    torch.testing.assert_close(fantasies.posterior(AT).mean[4, 1], expected, rtol=1e-8, atol=1e-8)
    none = model.fantasize(x[:, :0], sampler)
    assert none.batch_shape == (5, 3)
    torch.testing.assert_close(none.posterior(AT).mean[2, 1], model.posterior(AT).mean)


def test_gradients_in_what_was_observed():
    model = LinearizedGPModel(fitted(X, values(X)))
    x, y = rows(1, 2, seed=7).requires_grad_(), values(rows(1, 2, seed=8)).requires_grad_()

    def moments(x, y):
        posterior = model.condition_on_observations(x, y).posterior(AT)
        return posterior.mean, posterior.distribution.covariance_matrix

    assert torch.autograd.gradcheck(moments, (x, y), eps=1e-6, atol=1e-6, rtol=1e-5)
    unbatched = (x[0].detach().requires_grad_(), y[0].detach().requires_grad_())
    assert torch.autograd.gradcheck(moments, unbatched, eps=1e-6, atol=1e-6, rtol=1e-5)


def test_old_and_new_model_do_not_share_hyperparameters():
    model = LinearizedGPModel(fitted(X, values(X), prior=Isotropic(1.5)))
    after = model.condition_on_observations(NEW, values(NEW))
    before = model.posterior(AT).variance
    after.gp.prior.precision = 100.0
    torch.testing.assert_close(model.posterior(AT).variance, before, rtol=0, atol=0)


def test_shapes_that_do_not_fit():
    model = LinearizedGPModel(fitted(X, values(X, 2)))
    with pytest.raises(ValueError, match=r"Y: expected \(batch_shape x 4 x 2\)"):
        model.condition_on_observations(NEW, values(NEW))
    with pytest.raises(ValueError, match=r"Y: expected \(batch_shape x 4 x 2\)"):
        model.condition_on_observations(NEW, values(NEW[:3], 2))
    with pytest.raises(ValueError, match=r"noise: expected variances \(... x 1 or 4 x 2\)"):
        model.condition_on_observations(NEW, values(NEW, 2), noise=torch.ones(3, 2).double())
