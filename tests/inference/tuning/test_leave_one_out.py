"""Leave-one-out in closed form: equal to N refits where it is exact, near them elsewhere."""

from __future__ import annotations

import warnings

import pytest
import torch
from laplace_cases import CASES, KINDS, Case, dense_jacobian, hyperparameters, make_laplace

from lingp.inference import LinearizedLaplace, RoundingWarning, TrainingSet, factorize
from lingp.inference.mean_scale import Matched
from lingp.inference.tuning.leave_one_out import cavity, leave_one_out
from lingp.inference.tuning.objectives import LeaveOneOutDensity, SpectralLeaveOneOut
from lingp.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    Poisson,
    StudentT,
)
from lingp.priors import Isotropic, Layerwise

MEANS = ["network", "refit"]
SPACES = ["weight", "function"]


def refitted(net, x, y, prior, likelihood):
    """Mean (N x C) and covariance (N x C x C) of each datum's outputs from all other data.

    The exact Gaussian process without the datum, written down as in the books.
    """
    jacobian = dense_jacobian(net, x)
    sizes = torch.tensor([p.numel() for p in net.parameters()])
    variances = prior.variances().repeat_interleave(sizes)
    weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    num_data, num_outputs = y.shape
    kernel = (jacobian * variances) @ jacobian.mT
    offset = net(x).detach().reshape(-1) + jacobian @ (prior.mean - weights)
    noise = torch.diag(likelihood.noise.expand(y.shape).reshape(-1))
    means, covariances = [], []
    for n in range(num_data):
        out = torch.zeros(num_data, num_outputs, dtype=torch.bool)
        out[n] = True
        out = out.reshape(-1)
        seen = (kernel + noise)[~out][:, ~out]
        solved = torch.linalg.solve(seen, kernel[~out][:, out]).mT
        means.append(offset[out] + solved @ (y.reshape(-1) - offset)[~out])
        covariances.append(kernel[out][:, out] - solved @ kernel[~out][:, out])
    return torch.stack(means), torch.stack(covariances)


def close(actual, expected, rtol=1e-8):
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=rtol * scale)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[7]], ids=lambda case: case.name)
def test_gaussian_equals_refits(case, kind, space):
    net, x, y, _ = case.build()
    prior, likelihood = hyperparameters(kind, case.num_outputs)
    laplace = make_laplace(net, x, y, prior, likelihood, space, "refit")
    found = leave_one_out(laplace)
    mean, covariance = refitted(net, x, y, prior, likelihood)
    close(found.mean, mean)
    close(found.covariance, covariance)
    expected = likelihood.predictive(mean, covariance).log_prob(y)
    close(found.log_predictive(), expected)

    parameters = [*prior.parameters(), *likelihood.parameters()]
    gradients = torch.autograd.grad(found.total(), parameters)
    for actual, wanted in zip(
        gradients, torch.autograd.grad(expected.sum(), parameters), strict=True
    ):
        close(actual, wanted)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("space", SPACES)
def test_the_spectrum_gives_the_same_at_every_scale(space, mean):
    net, x, y, _ = CASES[1].build()
    prior, likelihood = hyperparameters("isotropic/scalar", 3)
    laplace = make_laplace(net, x, y, prior, likelihood, space, mean)
    spectral = SpectralLeaveOneOut(laplace)
    for precision, noise in ((0.7, 0.2), (10.0, 0.01), (0.01, 3.0)):
        prior.precision, likelihood.noise = precision, noise
        actual, expected = spectral.value(), leave_one_out(laplace).total()
        assert actual.item() == pytest.approx(expected.item(), rel=1e-8)
        parameters = [prior.raw_precision, likelihood.raw_noise]
        for a, e in zip(
            torch.autograd.grad(actual, parameters),
            torch.autograd.grad(expected, parameters),
            strict=True,
        ):
            assert a.item() == pytest.approx(e.item(), rel=1e-6, abs=1e-7)


LIKELIHOODS = {
    "categorical": (Categorical, 3),
    "bernoulli": (Bernoulli, 1),
    "poisson": (Poisson, 1),
    "heteroscedastic": (Heteroscedastic, 2),
    "student-t": (lambda: StudentT(4.0, 0.3), 1),
}


def other(name, mean, space="function", prior=None, num_data=12):
    """A linearised model and data that it could have made."""
    make, num_outputs = LIKELIHOODS[name]
    net, x, _, _ = Case("", num_outputs, 1).build(num_data)
    generator = torch.Generator().manual_seed(0)
    likelihood = make()
    jacobian = dense_jacobian(net, x)
    draw = torch.randn(jacobian.shape[1], generator=generator, dtype=torch.float64)
    weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    outputs = net(x).detach() + (jacobian @ (draw - weights)).view(num_data, num_outputs)
    y = likelihood.sample(outputs, generator=generator)
    if name == "heteroscedastic":
        y = y.view(num_data, 1)
    return make_laplace(net, x, y, prior or Isotropic(), likelihood, space, mean)


def brute_force(laplace):
    """log p(y_n | all other data) by fitting the linearised model without each datum."""
    whole, found = laplace.training, []
    factors = whole.factors()
    for n in range(whole.num_data):
        rest = torch.arange(whole.num_data) != n
        outputs, targets = whole.outputs[rest], whole.targets[rest]
        weights = None if whole.weights is None else whole.weights[rest]
        training = TrainingSet(
            whole.linearized, [], outputs, targets, [factors.rows(rest)], weights=weights
        )
        fitted = LinearizedLaplace(
            training, laplace.prior, laplace.likelihood, laplace.method, "refit"
        )
        row = factors.rows(slice(n, n + 1))
        mean = whole.outputs[n : n + 1]
        mean = mean + row.matmul(fitted.weight_shift().unsqueeze(-1)).squeeze(-1)
        covariance = fitted.posterior().marginal_covariance(row)
        predictive = laplace.likelihood.predictive(mean, covariance)
        found.append(predictive.log_prob(whole.targets[n : n + 1]))
    return torch.cat(found)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_other_likelihoods_are_near_refits(name):
    """Within a tenth of what there is to find: how much worse than the fit refits predict."""
    laplace = other(name, "refit")
    with torch.no_grad():
        found, expected = leave_one_out(laplace).log_predictive(), brute_force(laplace)
        fit = laplace.data_term.log_prob_rows(laplace.solution().outputs)
    gap = float((fit - expected).mean())
    assert gap > 0.05
    assert abs(float((found - expected).mean())) < 0.1 * gap


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradients_of_other_likelihoods_in_both_spaces(name, mean):
    """Spaces agree, and agree with finite differences."""
    results = []
    for space in SPACES:
        laplace = other(name, mean, space, Layerwise(0.7), num_data=8)
        parameters = [
            p
            for module in (laplace.prior, laplace.likelihood)
            for p in module.parameters()
            if p.requires_grad
        ]
        total = leave_one_out(laplace).total()
        gradients = torch.autograd.grad(total, parameters)
        results.append([total, *gradients])
    for a, b in zip(*results, strict=True):
        close(a, b, 1e-6)
    step, parameter = 1e-4, parameters[0]
    with torch.no_grad():
        values = []
        for sign in (1, -2):
            parameter[0] += sign * step
            values.append(float(leave_one_out(laplace).total()))
    difference = (values[0] - values[1]) / (2 * step)
    assert gradients[0][0].item() == pytest.approx(difference, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("space", SPACES)
def test_weighted_and_missing_data(space):
    """A weighted datum is left out as a whole; missing targets are not predicted."""
    net, x, y, _ = CASES[1].build()
    y[3, 1] = float("nan")
    y[5] = float("nan")
    laplace = make_laplace(net, x, y, Isotropic(0.7), Gaussian(0.2), space, "refit")
    laplace.training.weights = torch.linspace(0.0, 2.2, len(x), dtype=torch.float64)
    found = leave_one_out(laplace)
    with torch.no_grad():
        expected = brute_force(laplace)
        close(found.log_predictive(), expected)
        close(found.total(), laplace.training.weights @ expected)
    assert found.log_predictive()[5] == 0.0
    gradients = torch.autograd.grad(found.total(), list(laplace.prior.parameters()))
    assert all(bool(torch.isfinite(g).all()) for g in gradients)


@pytest.mark.parametrize("space", SPACES)
def test_a_datum_alone_in_its_direction(space, monkeypatch):
    """Leverage within 1e-9 of one, where I - Rᵀ C R cancels.

    Cholesky of I + Φ Φᵀ, whose largest eigenvalue is 1e11, leaves about four digits, QR more.
    """
    net, x, y, _ = CASES[1].build(num_data=5)
    prior, likelihood = Isotropic(1e-3), Gaussian(1e-7)
    mean, covariance = refitted(net, x, y, prior.bind(n for n, _ in net.named_parameters()),
                                likelihood)  # fmt: skip
    for limit, tolerance in ((1e-2, 1e-3), (0.0, 1e-5)):
        monkeypatch.setattr(factorize, "ROUNDING_LIMIT", limit)
        laplace = make_laplace(net, x, y, prior, likelihood, space, "refit")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = leave_one_out(laplace)
        close(found.mean, mean, tolerance)
        close(found.covariance, covariance, tolerance)


@pytest.mark.parametrize("space", SPACES)
def test_float32_knows_data_alone_in_their_direction(space):
    """Leverages that differ from one by less than float32 can tell."""
    net, x, y, _ = CASES[0].build(num_data=12)
    found = []
    for dtype in (torch.float32, torch.float64):
        laplace = make_laplace(net, x, y, Isotropic(1e-3), Gaussian(1e-6), space, "network", dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RoundingWarning)
            found.append(leave_one_out(laplace).covariance.double().reshape(-1))
    assert (1e-6 / (found[1] + 1e-6)).min() < 1e-7
    torch.testing.assert_close(*found, rtol=2e-2, atol=0)


@pytest.mark.parametrize("rule", [2.0, Matched(1.5)])
def test_labels_are_predicted_with_the_scale_of_the_mean(rule):
    """The mean without a datum, s times as far from zero; a search holds s as it finds it."""
    laplace = other("categorical", "network", prior=Isotropic(0.05))
    plain = leave_one_out(laplace)
    laplace.mean_scale = rule
    found, scale = leave_one_out(laplace), laplace.scale_of_mean()
    assert found.mean_scale == scale > 1
    torch.testing.assert_close(found.mean, plain.mean)
    expected = Categorical().predictive(scale * plain.mean, plain.covariance)
    targets = laplace.training.targets
    torch.testing.assert_close(found.log_predictive(), expected.log_prob(targets))
    objective = LeaveOneOutDensity(laplace)
    spectral = objective.spectral()
    laplace.prior.precision = 1.0
    assert objective.value().item() == pytest.approx(spectral.value().item(), rel=1e-8)
    assert objective.laplace.scale_of_mean() == scale
    (slope,) = torch.autograd.grad(objective.value(), [laplace.prior.raw_precision])
    values = []
    with torch.no_grad():
        for step in (1e-4, -2e-4):
            laplace.prior.raw_precision += step
            values.append(float(objective.value()))
    assert slope.item() == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-5)


def test_leverage_beyond_rounding_is_an_error():
    inner = torch.tensor([[[1.0]], [[-1e-9]]])
    ones = torch.ones(2, 1, 1)
    with pytest.raises(ValueError, match=r"first is row 1.*leverage.*function_space"):
        cavity(ones[:, 0], ones, ones, ones[:, 0], inner)


@pytest.mark.parametrize("space", SPACES)
def test_results_dont_depend_on_memory(space):
    net, x, y, _ = CASES[3].build()
    results = []
    for keep_bytes, chunk_bytes in ((1 << 30, 1 << 27), (0, 1)):
        prior, likelihood = hyperparameters("layerwise/per-output", 3)
        laplace = make_laplace(
            net, x, y, prior, likelihood, space, "refit",
            keep_bytes=keep_bytes, chunk_bytes=chunk_bytes,
        )  # fmt: skip
        total = leave_one_out(laplace).total()
        parameters = [*prior.parameters(), *likelihood.parameters()]
        results.append([total, *torch.autograd.grad(total, parameters)])
    for kept, recomputed in zip(*results, strict=True):
        close(recomputed, kept, 1e-10)


def test_without_a_graph_nothing_is_kept():
    net, x, y, _ = CASES[1].build()
    laplace = make_laplace(net, x, y, Isotropic(0.7), Gaussian(0.2), "function", "refit")
    with torch.no_grad():
        assert not leave_one_out(laplace).total().requires_grad
