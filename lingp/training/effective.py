"""The effective number of parameters."""

from __future__ import annotations

import torch

from lingp.inference import FunctionSpace, WeightSpace
from lingp.inference.factorize import Factorization
from lingp.inference.sparse import SparsePosterior
from lingp.models import LinearizedGP


def effective_parameters(gp: LinearizedGP) -> float:
    """γ = tr (I + Φ Φᵀ)⁻¹ Φ Φᵀ = Σ_l v_l ∂ log det(I + Φ Φᵀ) / ∂ v_l.

    For a sparse posterior, of its log determinant with what it leaves out.

    Parameters
    ----------
    gp
        With data.
    """
    laplace = gp.laplace
    with torch.no_grad():
        posterior = laplace.solution().posterior
        if isinstance(posterior, SparsePosterior):
            return float(_of_sparse(posterior))
        if isinstance(posterior, FunctionSpace | WeightSpace):
            return float(_determined(posterior.factorization))
    raw = list(laplace.prior.parameters())
    wanted = [p.requires_grad for p in raw]
    for p in raw:
        p.requires_grad_(True)
    try:
        with torch.enable_grad():
            posterior = laplace.solution().posterior
            log_determinant = posterior.log_determinant()
            slopes = torch.autograd.grad(log_determinant, posterior.variances)[0]
    finally:
        for p, flag in zip(raw, wanted, strict=True):
            p.requires_grad_(flag)
    return float(slopes @ posterior.variances.detach())


def _determined(factorization: Factorization) -> torch.Tensor:
    """n - tr B⁻¹ for the matrix B = I + ... (n x n) that is factorised."""
    return len(factorization.factor) - factorization.inverse_trace()


@torch.no_grad()
def _of_sparse(posterior: SparsePosterior) -> torch.Tensor:
    """m - tr A⁻¹ + ∂l/∂log c of all variances times c: Ψ grows by √c, t and l's slope follow.

    l = r log(1 + t/r) gives t / (1 + t/r), l = t gives t: t times the variance outside the span.
    """
    outside = posterior.complement_variance * posterior.trace_term().clamp(min=0)
    return _determined(posterior.factorization) + outside
