"""A square root of a covariance of any rank."""

from __future__ import annotations

import torch
from torch import Tensor


def square_root(matrix: Tensor) -> Tensor:
    """A with A Aᵀ = matrix, (... x n x n), for PSD matrices of any rank, each on its own."""
    size = matrix.shape[-1]
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1).clamp(min=0)
    # what rounding has done to the matrix already
    slack = size * torch.finfo(matrix.dtype).eps * largest
    eye = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    factor, info = torch.linalg.cholesky_ex(matrix + slack[..., None, None] * eye)
    failed = info != 0
    if not bool(failed.any()):
        return factor
    values, vectors = torch.linalg.eigh(torch.where(failed[..., None, None], matrix, eye))
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    return torch.where(failed[..., None, None], root, factor)
