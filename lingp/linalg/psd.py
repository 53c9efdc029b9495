"""Square roots of positive semi-definite matrices of any rank, and repairs of what rounding does.

psd_root      symmetric, with a derivative where eigenvalues repeat
square_root   triangular where there is a Cholesky factor, of any shape else; no derivative
lower_root    triangular always, of the matrix plus the least multiple of I; with a derivative
nearest_psd   the matrix without its negative eigenvalues
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lingp.linalg.first_order import first_order

_MOST_TRIES = 12


def psd_root(matrix: Tensor) -> Tensor:
    """R = Rᵀ with R R = the projection of a symmetric matrix onto the PSD cone, (... x C x C).

    Negative eigenvalues count as zero. The gradient of `torch.linalg.eigh` divides by differences
    of eigenvalues, which softmax or independent outputs make zero; this one never does.
    """
    root: Tensor = _PsdRoot.apply(matrix)
    return root


class _PsdRoot(torch.autograd.Function):
    """h(Λ) for h(λ) = max(λ, 0)^{1/2}; its derivative by the Daleckii-Krein theorem.

        Λ = V diag(λ) Vᵀ,     dh(Λ) = V ( D ∘ (Vᵀ dΛ V) ) Vᵀ
        D_ij = (h(λ_i) - h(λ_j)) / (λ_i - λ_j) = 1 / (√λ_i + √λ_j)      both positive

    Higham (2008), Functions of Matrices, theorem 3.11. Between two zero eigenvalues h has no
    derivative; D is zero there, exact for every change that keeps the rank, and the derivative of
    R Rᵀ = h(Λ)², where √λ multiplies D, is exact whenever Λ stays PSD.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
        rounding = matrix.shape[-1] * torch.finfo(matrix.dtype).eps
        largest = values.abs().amax(-1, keepdim=True)
        values = torch.where(values.abs() <= rounding * largest, 0.0, values)
        ctx.save_for_backward(values, vectors, matrix)
        return (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)) @ vectors.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor | None:
        values, vectors, matrix = ctx.saved_tensors
        return first_order(lambda: [_PsdRoot.gradient(values, vectors, grad)], grad, matrix)[0]

    @staticmethod
    def gradient(values: Tensor, vectors: Tensor, grad: Tensor) -> Tensor:
        """In Λ, from its eigenvalues and eigenvectors and the gradient in R."""
        roots = values.clamp(min=0).sqrt()
        sums = roots.unsqueeze(-1) + roots.unsqueeze(-2)
        negative = (-values).clamp(min=0).unsqueeze(-1) + (-values).clamp(min=0).unsqueeze(-2)
        # one positive, one negative: √λ_i / (λ_i - λ_j); two that are not positive: zero
        denominator = torch.where(negative > 0, sums.square() + negative, sums.square())
        divided = torch.where(sums > 0, sums / denominator.where(sums > 0, 1.0), 0.0)
        inner = vectors.mT @ (0.5 * (grad + grad.mT)) @ vectors
        return vectors @ (divided * inner) @ vectors.mT


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


def lower_root(matrix: Tensor) -> Tensor:
    """Lower triangular L with L Lᵀ = matrix + ε I, (*batch, n, n), each with an ε of its own.

    ε is what rounding leaves open, eps times the trace, or the least power of ten times that for
    which there is a Cholesky factor.

    Raises
    ------
    torch.linalg.LinAlgError
        If there is none, as for matrices that are far from PSD, or NaN.
    """
    trace = matrix.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    rounding = torch.finfo(matrix.dtype)
    slack = rounding.eps * trace.clamp(min=rounding.tiny)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(_MOST_TRIES):
        root, info = torch.linalg.cholesky_ex(matrix + slack[..., None, None] * eye)
        if not bool(info.any()):
            return root
        slack = torch.where(info != 0, 10 * slack, slack)
    return torch.linalg.cholesky(matrix + slack[..., None, None] * eye)


def nearest_psd(matrices: Tensor) -> Tensor:
    """Negative eigenvalues, which rounding makes, set to zero; (n x C x C)."""
    if matrices.shape[-1] == 1:
        return matrices.clamp(min=0)
    values, vectors = torch.linalg.eigh(0.5 * (matrices + matrices.mT))
    return (vectors * values.clamp(min=0).unsqueeze(-2)) @ vectors.mT
