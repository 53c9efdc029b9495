"""A linear model with Gaussian noise of every kind: evidence and posterior in closed form."""

from __future__ import annotations

import pytest
import torch

from lingp import LinearizedGP
from lingp.likelihoods import CorrelatedGaussian, Gaussian, KnownNoiseGaussian

N, D, C, PRECISION = 12, 3, 2, 2.0
SPACES = ["weight_space", "function_space"]


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y, KNOWN = tensor(N, D), tensor(N, C, seed=1), tensor(N, C, seed=2).exp()
MISSING = Y.clone()
MISSING[1, 0] = MISSING[4] = torch.nan
EYE = torch.eye(N, dtype=torch.float64)
SIGMA = torch.tensor([[0.5, 0.3], [0.3, 0.4]], dtype=torch.float64)


def shared(likelihood):
    return torch.kron(EYE, torch.diag(likelihood.noise.expand(C)))


def correlated(likelihood):
    return torch.kron(EYE, likelihood.covariance)


def known(likelihood):
    return torch.diag((KNOWN + likelihood.noise).flatten())


def beside(values):
    return torch.stack([values, KNOWN], -1)


KINDS = {
    "gaussian": (lambda: Gaussian([0.2, 0.7]), shared, lambda values: values),
    "correlated": (lambda: CorrelatedGaussian(SIGMA), correlated, lambda values: values),
    "known": (lambda: KnownNoiseGaussian(), known, beside),
    "known and shared": (lambda: KnownNoiseGaussian(0.3), known, beside),
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("values", [Y, MISSING], ids=["complete", "missing"])
@pytest.mark.parametrize("kind", KINDS)
def test_evidence_and_posterior_are_those_of_linear_regression(kind, values, space):
    make, noise, targets = KINDS[kind]
    likelihood, net = make(), torch.nn.Linear(D, C).double()
    gp = LinearizedGP(net, likelihood, prior=PRECISION, inference=space, mean="refit")
    gp.fit(X, targets(values), missing="nan")
    close = torch.testing.assert_close

    features = torch.cat([X, torch.ones(N, 1, dtype=torch.float64)], 1)
    kernel = torch.kron(features @ features.mT / PRECISION, torch.eye(C, dtype=torch.float64))
    seen = ~values.flatten().isnan()
    y = values.flatten()[seen]
    total = (kernel + noise(likelihood))[seen][:, seen]
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(y), total).log_prob(y)
    found = gp.log_marginal_likelihood()
    close(found, evidence, rtol=1e-12, atol=1e-12)
    for parameter in likelihood.parameters():
        gradients = [
            torch.autograd.grad(value, parameter, retain_graph=True)[0]
            for value in (found, evidence)
        ]
        close(*gradients, rtol=1e-10, atol=1e-10)

    cross, solve = kernel[:, seen], torch.linalg.solve
    prediction = gp.predict(X)
    close(prediction.mean, (cross @ solve(total, y)).reshape(N, C), rtol=1e-10, atol=1e-10)
    variance = (kernel - cross @ solve(total, cross.mT)).diagonal().reshape(N, C)
    close(prediction.epistemic_variance, variance, rtol=1e-10, atol=1e-10)
