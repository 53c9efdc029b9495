"""Small networks and data that tests of the front door share."""

from __future__ import annotations

import functools
import math

import torch
from likelihood_cases import CASES, LikelihoodCase
from torch import Tensor, nn

from lingp.models import LinearizedGP

# those that differ from another in the reference for their curvature only are left out
_REFERENCES = ("by-definition", "all-equal", "narrow", "clamped", "own-curvature")
LIKELIHOODS = [case for case in CASES if not case.name.endswith(_REFERENCES)]


def make_net(output_shape: tuple[int, ...] | int = 1, width: int = 4) -> nn.Module:
    """Two inputs, one hidden layer, float64 and seeded."""
    shape = (output_shape,) if isinstance(output_shape, int) else output_shape
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(2, width), nn.Tanh(), nn.Linear(width, math.prod(shape))]
    if shape == ():
        layers.append(nn.Flatten(0))
    elif len(shape) > 1:
        layers.append(nn.Unflatten(1, shape))
    return nn.Sequential(*layers).double()


def make_inputs(num_data: int = 12, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_data, 2, generator=generator, dtype=torch.float64)


def targets_of(case: LikelihoodCase, num_data: int = 12, seed: int = 0) -> Tensor:
    """Valid random targets, as a user gives them."""
    return case.targets(torch.Generator().manual_seed(seed), num_data)


def fitted(case: LikelihoodCase, **options: object) -> LinearizedGP:
    """A GP with a case's likelihood, on random data, of its own."""
    gp = LinearizedGP(make_net(case.output_shape), case.make(), prior=2.0, **options)
    return gp.fit(make_inputs(), targets_of(case))


@functools.cache
def shared(name: str, **options: object) -> LinearizedGP:
    """The same, made once; for tests that leave it as it is."""
    return fitted(next(case for case in CASES if case.name == name), **options)


def known_of(case: LikelihoodCase, y: Tensor) -> Tensor | None:
    """The known quantities in targets as a user gives them."""
    likelihood = case.make()
    checked = likelihood.check_targets(y, case.output_shape, torch.float64)
    return checked[..., 1] if checked.dim() == 3 else None


def same(gp: LinearizedGP, expected: LinearizedGP, x: Tensor, rtol: float = 1e-9) -> None:
    """Two GPs have the same evidence, mean and covariance."""
    close = torch.testing.assert_close
    evidence, wanted = gp.log_marginal_likelihood(), expected.log_marginal_likelihood()
    close(evidence.detach(), wanted.detach(), rtol=rtol, atol=1e-9)
    posterior, other = gp.posterior(x), expected.posterior(x)
    close(posterior.mean, other.mean, rtol=rtol, atol=1e-9)
    scale = float(other.variance.max())
    close(posterior.covariance_matrix, other.covariance_matrix, rtol=rtol, atol=1e-9 * scale)
