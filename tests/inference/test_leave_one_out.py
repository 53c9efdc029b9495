"""Leave-one-out in closed form: equal to N refits where it is exact, near them elsewhere."""

from __future__ import annotations

import pytest
import torch
from laplace_cases import CASES, KINDS, dense_jacobian, hyperparameters, make_laplace

from lingp.inference.leave_one_out import leave_one_out, spectral_leave_one_out

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
    spectral = spectral_leave_one_out(laplace)
    for precision, noise in ((0.7, 0.2), (10.0, 0.01), (0.01, 3.0)):
        prior.precision, likelihood.noise = precision, noise
        actual, expected = spectral(), leave_one_out(laplace).total()
        assert actual.item() == pytest.approx(expected.item(), rel=1e-8)
        parameters = [prior.raw_precision, likelihood.raw_noise]
        for a, e in zip(
            torch.autograd.grad(actual, parameters),
            torch.autograd.grad(expected, parameters),
            strict=True,
        ):
            assert a.item() == pytest.approx(e.item(), rel=1e-6, abs=1e-7)
