"""Targets on the real line with noise that isn't one Gaussian for all."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import t as student

from likelihood_cases.case import LikelihoodCase
from likelihood_cases.gaussian import normal
from lingp.likelihoods import Heteroscedastic, StudentT


def heteroscedastic_curvature(likelihood, y, f):
    """(dη/df)ᵀ (-∇²_η log p) (dη/df) of the natural form, all of it by torch.func."""

    def natural(f):
        f1, f2 = f.chunk(2)
        # softplus is log(1 + e^f₂); both links as Heteroscedastic bounds them
        if likelihood.link == "exp":
            g = f2.clamp(-40.0, 40.0).exp()
        else:
            g = torch.nn.functional.softplus(f2.clamp(min=-40.0), threshold=50.0)
        return torch.cat([f1, -0.5 * (g + likelihood.floor)])

    def log_prob(eta, y):
        eta1, eta2 = eta.chunk(2)
        terms = eta1 * y + eta2 * y.square() + eta1.square() / (4 * eta2)
        return (terms + 0.5 * (-2 * eta2).log() - 0.5 * math.log(2 * math.pi)).sum()

    def single(f, y):
        chain = torch.func.jacrev(natural)(f)
        return -chain.mT @ torch.func.hessian(log_prob)(natural(f), y) @ chain

    return torch.func.vmap(single)(f, y.nan_to_num())


def outputs_at(sigmas, means, link):
    """The outputs (n x 2) that stand for these standard deviations and means."""
    sigma, mean = (
        torch.tensor(sigmas, dtype=torch.float64),
        torch.tensor(means, dtype=torch.float64),
    )
    precision = sigma.square().reciprocal()
    f2 = precision.log()
    if link == "softplus":
        f2 = precision + torch.log(-torch.expm1(-precision))
    return torch.stack([mean * precision, f2], 1)


def heteroscedastic_extremes(link):
    sigmas, means = [1e-6, 1e-6, 1.0, 1e6, 1e6], [0.0, 1e3, 1e3, 0.0, -1e6]
    y = torch.tensor([[1e-6], [1e3], [-1e3], [1e6], [2e6]]).double()
    # far beyond any sensible output
    far = torch.tensor([[0.0, -1e3], [1e3, -1e3], [1e3, 1e3], [-1e3, 35.0], [1e3, -39.0]])
    return [(y, outputs_at(sigmas, means, link)), (torch.ones(5, 1), far)]


def fisher_information(likelihood, y, f):
    """E[(d/df log p)²] of each output by quadrature, with the density of scipy.

    z = sinh(u) makes the integrand analytic and of exponential decay, for which the trapezoidal
    rule converges geometrically: halving the step changes the twelfth digit by nothing.
    """
    num_outputs = f.shape[1]
    freedom = likelihood.degrees_of_freedom.detach().expand(num_outputs).numpy()
    scale = likelihood.scale.detach().expand(num_outputs).numpy()
    u = np.linspace(-30.0, 30.0, 2001)[:, None]
    z = np.sinh(u)
    score = (freedom + 1) * z / (freedom + z**2) / scale
    integrand = score**2 * student.pdf(z, freedom) * np.cosh(u)
    information = torch.from_numpy(integrand.sum(0) * (u[1] - u[0]))
    return torch.diag(information).expand(len(f), -1, -1)


_outliers = torch.tensor([[1e6], [-1e3], [1e-6], [0.0]]).double()

CASES = [
    LikelihoodCase(
        f"heteroscedastic-{link}-{num_targets}",
        lambda link=link: Heteroscedastic(link),
        (2 * num_targets,),
        normal(num_targets),
        heteroscedastic_curvature,
        extremes=heteroscedastic_extremes(link) if num_targets == 1 else [],
        missing=True,
    )
    for link in ("softplus", "exp")
    for num_targets in (1, 3)
]
CASES += [
    LikelihoodCase(
        f"heteroscedastic-{link}-floor",
        lambda link=link: Heteroscedastic(link, floor=0.3),
        (4,),
        normal(2),
        heteroscedastic_curvature,
        missing=True,
    )
    for link in ("softplus", "exp")
]
CASES += [
    LikelihoodCase("student-t", StudentT, (), normal(), fisher_information, missing=True),
    LikelihoodCase(
        "student-t-per-output",
        lambda: StudentT([2.5, 30.0], [0.3, 2.0]),
        (2,),
        normal(2),
        fisher_information,
        missing=True,
    ),
]
CASES += [
    LikelihoodCase(
        f"student-t-{scale:g}-{freedom:g}",
        lambda scale=scale, freedom=freedom: StudentT(freedom, scale),
        (1,),
        normal(1),
        fisher_information,
        extremes=[(_outliers, -_outliers), (_outliers, torch.zeros(4, 1))],
    )
    for scale, freedom in ((1e-6, 4.0), (1e6, 4.0), (1.0, 1e6))
]
