"""Log determinants by stochastic Lanczos quadrature.

    log det B - log det P = tr log M         M = P^{-1/2} B P^{-1/2} ⪰ I

The step sizes of conjugate gradients that start from a probe b ~ N(0, P) are the entries of a
tridiagonal T, the Lanczos matrix of M started from u = P^{-1/2} b. Its Gauss quadrature

    uᵀ log(M) u ≈ |u|² e₁ᵀ log(T) e₁

is never below the true value, since every even derivative of the logarithm is negative, and Gauss
and Radau's rule with one node below the spectrum is never above it: the two enclose what has not
been resolved yet (Golub and Meurant, Matrices, Moments and Quadrature, 2010, chapter 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference.iterative.krylov import BlockProduct, Solve, Steps, solve

_NODE = 0.5  # of Radau's rule: below the spectrum of M, far enough to be well conditioned


@dataclass(frozen=True)
class LogDeterminantEstimate:
    """An estimate of tr log(P^{-1/2} B P^{-1/2}), and what its gradient is estimated from.

    Attributes
    ----------
    mean
        The mean of the probes, float.
    standard_error
        The standard error of the mean over probes, float.
    truncation
        The most that the mean is off for these probes because Lanczos stopped early, float.
    solution
        B⁻¹ b of the probes b.
    preconditioned
        P⁻¹ b, (n x S).
    weights
        n / (bᵀ P⁻¹ b), (S,): tr(B⁻¹ dB) = E[ w (B⁻¹ b)ᵀ dB (P⁻¹ b) ].
    """

    mean: float
    standard_error: float
    truncation: float
    solution: Solve
    preconditioned: Tensor
    weights: Tensor


def stochastic_log_determinant(
    product: BlockProduct,
    precondition: BlockProduct,
    probes: Tensor,
    *,
    tolerance: float,
    max_iterations: int,
) -> LogDeterminantEstimate:
    """tr log(P^{-1/2} B P^{-1/2}) by stochastic Lanczos quadrature (Ubaru, Chen and Saad, 2017).

    u = P^{-1/2} b is used by its direction only, n uᵀ log(M) u / |u|²: its length says nothing
    about M and would add its own variance.

    Parameters
    ----------
    product
        v -> B v for a symmetric B ⪰ P.
    precondition
        v -> P⁻¹ v.
    probes
        Draws b from N(0, P), (n x S), S at least 2.
    tolerance
        The bound on the relative residual of B⁻¹ b; the quadrature's own error is about its square.
    max_iterations
        The most products.

    Raises
    ------
    ValueError
        If there are fewer than two probes, which leave no standard error.
    """
    num_rows, num_probes = probes.shape
    if num_probes < 2:
        raise ValueError(f"probes: a standard error takes at least 2 of them, got {num_probes}")
    preconditioned = precondition(probes)
    found = solve(product, probes, precondition, tolerance=tolerance, max_iterations=max_iterations)
    above, below = quadrature(found.steps)
    values = num_rows * 0.5 * (above + below)
    return LogDeterminantEstimate(
        mean=float(values.mean()),
        standard_error=float(values.std()) / math.sqrt(num_probes),
        truncation=float(0.5 * num_rows * (above - below).mean().abs()),
        solution=found,
        preconditioned=preconditioned,
        weights=num_rows / (probes * preconditioned).sum(0),
    )


def quadrature(steps: Steps) -> tuple[Tensor, Tensor]:
    """e₁ᵀ log(T) e₁ of every column by Gauss' rule and by Radau's, each (S,), float64 on the CPU.

    T has diagonal 1/α_k + β_{k-1}/α_{k-1} and off-diagonal √β_k/α_k (Golub and Van Loan, section
    11.3). Radau's rule has one row more, with a node at 1/2.

    Parameters
    ----------
    steps
        α and β of conjugate gradients started from zero.
    """
    alpha, beta = steps.sizes.double().cpu(), steps.ratios.double().cpu()
    count, num_columns = alpha.shape
    taken = alpha > 0
    inverse = torch.where(taken, 1 / alpha.masked_fill(~taken, 1), 0)
    coupling = beta.sqrt() * inverse  # (k, S), entry k couples rows k and k + 1
    diagonal = inverse.clone()
    diagonal[1:] += beta[:-1] * inverse[:-1]
    # rows that a column never reached are those of the identity, of which the logarithm is 0
    lengths = taken.sum(0)
    reached = torch.arange(count + 1).unsqueeze(-1) < lengths  # (k + 1, S)
    diagonal = torch.cat([diagonal, diagonal.new_zeros(1, num_columns)])
    gauss = _tridiagonal(torch.where(reached, diagonal, 1), torch.where(reached[1:], coupling, 0))
    # δ = βₖ² eₖᵀ (T - a)⁻¹ eₖ by the pivots of T - a
    pivot = torch.ones(num_columns, dtype=torch.float64)
    last = torch.zeros(num_columns, dtype=torch.float64)
    for k in range(count):
        before = coupling[k - 1].square() / pivot if k else 0
        pivot = torch.where(taken[k], diagonal[k] - _NODE - before, pivot)
        last = torch.where(taken[k], coupling[k].square() / pivot, last)
    here = torch.arange(count + 1).unsqueeze(-1) == lengths
    extended = torch.where(reached, diagonal, torch.where(here, _NODE + last, 1))
    radau = _tridiagonal(extended, torch.where(taken, coupling, 0))
    # a column without a single step is an eigenvector of eigenvalue 1 as far as it goes
    none = lengths == 0
    return (
        _first_log(gauss).masked_fill(none, 0),
        _first_log(radau).masked_fill(none, 0),
    )


def _tridiagonal(diagonal: Tensor, coupling: Tensor) -> Tensor:
    """Matrices (S x k x k) from their diagonals (k x S) and off-diagonals (k-1 x S)."""
    matrix = torch.diag_embed(diagonal.mT)
    off = torch.diag_embed(coupling.mT, offset=1)
    return matrix + off + off.mT


def _first_log(matrices: Tensor) -> Tensor:
    """e₁ᵀ log(T) e₁, (S,)."""
    values, vectors = torch.linalg.eigh(matrices)
    return (vectors[:, 0].square() * values.clamp(min=torch.finfo(values.dtype).tiny).log()).sum(-1)
