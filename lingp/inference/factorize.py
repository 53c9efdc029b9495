"""The Cholesky factor of I + Mᵀ M, from the product where rounding allows, else from M.

Cholesky of the product loses about n·eps·λ_max of the smallest eigenvalues, which are 1 (a
direction as uncertain as the prior). When that is no longer small, a QR of [M; I] gives the same
factor with only the square root of that loss.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from lingp.inference.streaming import Blocks, streamed_triangle

ROUNDING_LIMIT = 1e-2
"""Largest n·eps·λ_max at which Cholesky of the squared matrix is trusted."""


class RoundingWarning(UserWarning):
    """The squared matrix is past what its dtype resolves; a slower QR was used instead."""


def largest_eigenvalue(matrix: Tensor, num_iterations: int = 10) -> float:
    """Largest eigenvalue of a PSD matrix by a few power iterations (never above it)."""
    with torch.no_grad():
        # the column of largest norm has a share of the leading direction
        vector = matrix[:, int(matrix.diagonal().argmax())].clone()
        value = 0.0
        for _ in range(num_iterations):
            norm = float(torch.linalg.vector_norm(vector))
            if norm == 0.0 or not torch.isfinite(vector).all():
                return value if norm == 0.0 else float("inf")
            vector = matrix @ (vector / norm)
            value = float(torch.linalg.vector_norm(vector))
    return value


def rounding_loss(largest: float, size: int, dtype: torch.dtype) -> float:
    """n·eps·λ_max: what Cholesky of the squared matrix loses of an eigenvalue 1."""
    return size * torch.finfo(dtype).eps * largest


def cholesky_factor(squared: Tensor, blocks: Blocks, *inputs: Tensor) -> tuple[Tensor, bool]:
    """Lower L with L Lᵀ = I + Mᵀ M, and whether it came from a QR of M.

    Parameters
    ----------
    squared
        I + Mᵀ M, (n x n).
    blocks, inputs
        Yield the blocks of rows of M, used only past the rounding limit.
    """
    detached = squared.detach()
    if not bool(torch.isfinite(detached).all()):
        raise ValueError(
            "the whitened Jacobian has NaN or infinite entries: a hyperparameter (prior precision, "
            "noise) or the network's Jacobian is out of range"
        )
    size, dtype = squared.shape[0], squared.dtype
    largest = largest_eigenvalue(detached)
    loss = rounding_loss(largest, size, dtype)
    if loss < ROUNDING_LIMIT:
        factor, info = torch.linalg.cholesky_ex(squared)
        if int(info) == 0:
            return factor, False
    warnings.warn(
        f"I + Φ Φᵀ (size {size}) has largest eigenvalue {largest:.1e}: Cholesky in {dtype} "
        f"would lose {loss:.1e} of a prior variance. Working from a QR of Φ instead, which is "
        "slower"
        + (
            "; dtype=torch.float64 would do without"
            if dtype != torch.float64
            else "; a larger prior precision or noise would do without"
        ),
        RoundingWarning,
        stacklevel=2,
    )
    identity = torch.eye(size, dtype=dtype, device=squared.device)
    return streamed_triangle(blocks, identity, *inputs).mT, True
