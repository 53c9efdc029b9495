"""What `iterative.py` measures: variances, iterations, the exact posterior."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

import lingp
from lingp.inference import FunctionSpace, LinearizedLaplace
from lingp.inference.iterative import BoundIterative, IterativePosterior
from lingp.inference.iterative.krylov import Variances, solve
from lingp.operators import diagonal_blocks

T = TypeVar("T")
TOLERANCE = 1e-4
_DENSE_SHARES = 2.1  # of a dense kernel: memory with which one is written down
_LEAST_MEMORY = 4e9


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What the work gives, and its seconds."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def bound(
    laplace: LinearizedLaplace, num_inducing: int, num_probes: int, share: float
) -> BoundIterative:
    """Iterative inference with a dense kernel; `share` of a variance its certified error may be."""
    rows = laplace.training.outputs.numel()
    memory = _DENSE_SHARES * rows**2 * laplace.training.outputs.element_size()
    options = lingp.Iterative(
        min(num_inducing, rows // 2),
        tolerance=TOLERANCE,
        num_probes=num_probes,
        generator=torch.Generator().manual_seed(0),
        variance_tolerance=share,
    )
    return options.bind(laplace.training, laplace.prior, max(memory, _LEAST_MEMORY))


def variances(
    laplace: LinearizedLaplace, test: Tensor, block: int
) -> tuple[Tensor, IterativePosterior]:
    """Latent variances (n,), and the posterior whose certificate is that of all of them."""
    posterior = laplace.posterior()
    parts = []
    for x in test.split(block):
        _, factors = laplace.training.linearized.factors(x)
        parts.append(posterior.marginal_covariance(factors).flatten())
    return torch.cat(parts), posterior


@dataclass(frozen=True)
class Iterations:
    """What a few right-hand sides took.

    Attributes
    ----------
    counts
        Products of each.
    converged
        Whether all did within the most that was allowed.
    """

    counts: list[int]
    converged: bool

    def __str__(self) -> str:
        return f"{'' if self.converged else '> '}{statistics.median(self.counts):g}"

    def ratio(self, other: Iterations) -> str:
        """How many times as many as the other's."""
        return f"{'' if self.converged else '> '}{sum(self.counts) / sum(other.counts):.1f}"


@torch.no_grad()
def iterations(
    laplace: LinearizedLaplace, test: Tensor, *, certified: bool, preconditioned: bool, most: int
) -> Iterations:
    """Products until the columns of Rᵀ K(X, test) are solved.

    Parameters
    ----------
    laplace
        With iterative inference.
    test
        Inputs of the columns.
    certified
        Whether variances have to be certified too, as `Iterative` asks for: r' P⁻¹ r at most the
        tolerance's share of them, with P = I where there is no preconditioner.
    preconditioned
        Whether there is one.
    most
        Products after which it ends.
    """
    posterior, method = laplace.posterior(), laplace.method
    sparse, root, training = posterior.preconditioner, posterior.root, laplace.training
    _, factors = training.linearized.factors(test)
    columns = training.matmul(posterior.scale.square().unsqueeze(-1) * factors.jacobian()[:, 0].mT)
    right = root.t_apply(columns).flatten(0, 1)
    prior = diagonal_blocks(factors, posterior.variances).flatten()

    def product(w: Tensor) -> Tensor:
        return w + method.product(w, root, posterior.variances, posterior.isotropic)

    def precondition(w: Tensor) -> Tensor:
        if not preconditioned:
            return w
        rows = w.unflatten(0, (training.num_data, root.rank))
        inner = sparse.precision_solve(sparse.whitened_t_product(rows))
        return w - sparse.whitened_product(inner).flatten(0, 1)

    variances = Variances(prior, TOLERANCE) if certified else None
    found = solve(
        product, right, precondition, tolerance=TOLERANCE, max_iterations=most, variances=variances
    )
    return Iterations((found.steps.sizes > 0).sum(0).tolist(), bool(found.converged.all()))


@dataclass(frozen=True)
class Exact:
    """Variances and evidence in function space."""

    variance: Tensor
    evidence: float


@torch.no_grad()
def exact(laplace: LinearizedLaplace, test: Tensor) -> Exact:
    """What function space gives, by Cholesky."""
    laplace.method = FunctionSpace
    _, factors = laplace.training.linearized.factors(test)
    variance = laplace.posterior().marginal_covariance(factors).flatten()
    return Exact(variance, float(laplace.log_marginal_likelihood()))
