"""The effective number of parameters."""

from __future__ import annotations

import torch

from lingp.models import LinearizedGP


def effective_parameters(gp: LinearizedGP) -> float:
    """γ = tr (I + Φ Φᵀ)⁻¹ Φ Φᵀ = Σ_l v_l ∂ log det(I + Φ Φᵀ) / ∂ v_l.

    Parameters
    ----------
    gp
        With data.
    """
    laplace = gp._fitted()
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
