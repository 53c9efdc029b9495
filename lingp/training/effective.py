"""The effective number of parameters."""

from __future__ import annotations

import torch

from lingp.models import LinearizedGP


def effective_parameters(gp: LinearizedGP) -> float:
    """γ = tr (I + Φ Φᵀ)⁻¹ Φ Φᵀ = Σ_l v_l ∂ log det(I + Φ Φᵀ) / ∂ v_l.

    For a sparse posterior, of its log determinant with what it leaves out.

    Parameters
    ----------
    gp
        With data.
    """
    with torch.no_grad():
        return float(gp.laplace.solution().occam.effective_parameters())
