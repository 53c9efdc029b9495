"""The evidence taken apart: what the data, the prior, and what was not computed say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch

from lingp.inference.laplace import LinearizedLaplace
from lingp.runtime.plain import storable


@storable
@dataclass(frozen=True)
class Evidence:
    """log q(D) = log_likelihood - ½ (squared_norm + log_determinant + left_out), in nats.

    Attributes
    ----------
    log_likelihood
        Σ_n w_n log p(y_n | f_n) at the mean.
    squared_norm
        |Σ0^{-1/2} (θ - μ0)|² of the mean.
    log_determinant
        log det(I + Φ Φᵀ), or that of a sparse posterior's features.
    left_out
        The most that a sparse posterior's log determinant lacks, 0 for other methods. With it, the
        value is a lower bound.
    trace_term
        tr Λ (K - Ψ Ψᵀ): how much prior variance, weighted by curvature, the inducing points leave
        out. `left_out` is this or less.
    standard_error
        Of the value; 0 unless the log determinant is estimated by random probes.
    mean
        Whose mean, "network" or "refit".
    """

    log_likelihood: float
    squared_norm: float
    log_determinant: float
    left_out: float
    trace_term: float
    standard_error: float
    mean: str

    @property
    def value(self) -> float:
        """log q(D)."""
        penalty = self.squared_norm + self.log_determinant + self.left_out
        return self.log_likelihood - 0.5 * penalty

    def __str__(self) -> str:
        error = f" ± {self.standard_error:.2g}" if self.standard_error else ""
        left_out = f" - {0.5 * self.left_out:.6g} (left out)" if self.left_out else ""
        return (
            f"log marginal likelihood ({self.mean} mean) {self.value:.8g}{error} = "
            f"{self.log_likelihood:.6g} (fit) - {0.5 * self.squared_norm:.6g} (weights) - "
            f"{0.5 * self.log_determinant:.6g} (volume){left_out}"
        )


@singledispatch
@torch.no_grad()
def evidence(laplace: LinearizedLaplace) -> Evidence:
    """The evidence at the current hyperparameters, in parts."""
    at = laplace.solution()
    return Evidence(
        log_likelihood=float(laplace.data_term.log_prob(at.outputs)),
        squared_norm=float(at.e.square().sum()),
        log_determinant=float(at.occam.log_determinant()),
        left_out=float(at.occam.bound_gap()),
        trace_term=float(at.occam.trace_term()),
        standard_error=0.5 * at.occam.log_determinant_error(),
        mean=laplace.mean,
    )
