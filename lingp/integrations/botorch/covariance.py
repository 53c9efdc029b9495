"""Covariances that can be sampled from with gradients, whatever their rank."""

from __future__ import annotations

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator, RootLinearOperator
from torch import Tensor

from lingp.models.covariance import PosteriorCovariance

_MOST_TRIES = 12


class SampledCovariance(PosteriorCovariance):
    """A dense PSD matrix S (*batch, n, n), of any rank, whose root has finite derivatives.

    The root of a singular matrix has none: it is that of S + ε I, with the least ε, from rounding
    upwards, for which S + ε I has a Cholesky factor.
    """

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        return RootLinearOperator(DenseLinearOperator(lower_root(self.to_dense())))


def lower_root(matrix: Tensor) -> Tensor:
    """Lower triangular L with L Lᵀ = matrix + ε I, (*batch, n, n)."""
    size = matrix.shape[-1]
    largest = matrix.detach().diagonal(dim1=-2, dim2=-1).amax(-1) if size else matrix.new_zeros(())
    slack = size * torch.finfo(matrix.dtype).eps * largest.clamp(min=torch.finfo(matrix.dtype).tiny)
    eye = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    with torch.no_grad():
        for _ in range(_MOST_TRIES):
            failed = torch.linalg.cholesky_ex(matrix + slack[..., None, None] * eye).info != 0
            if not bool(failed.any()):
                break
            slack = torch.where(failed, 10 * slack, slack)
    return torch.linalg.cholesky(matrix + slack[..., None, None] * eye)
