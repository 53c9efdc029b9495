"""The square root of a positive semi-definite matrix, differentiable where eigenvalues repeat."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lingp.linalg.first_order import first_order


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
