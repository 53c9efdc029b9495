"""The Cholesky factor of I + Mᵀ M, from the product where rounding allows, else from M.

Cholesky of the product loses about n·eps·λ_max of the smallest eigenvalues, which are 1 (a
direction as uncertain as the prior). When that is no longer small, a QR of [M; I] gives the same
factor with only the square root of that loss.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lingp.linalg.streaming import MakeBlocks, streamed_triangle
from lingp.runtime.shards import Shards

ROUNDING_LIMIT = 1e-2
"""Largest n·eps·λ_max at which Cholesky of the squared matrix is trusted."""

_WHOLE = 256  # triangular matrices of this size are inverted in one piece


class RoundingWarning(UserWarning):
    """The squared matrix is past what its dtype resolves; a slower QR was used instead."""


class OutOfRangeError(ValueError):
    """A hyperparameter is so large or small that the whitened Jacobian isn't finite."""


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


@dataclass(frozen=True)
class Factorization:
    """L Lᵀ = B = I + Mᵀ M, (n x n).

    Attributes
    ----------
    factor
        L, lower triangular.
    squared
        B with its graph, to which gradients go; None where L has a graph itself (from a QR of M)
        or nothing has.
    from_qr
        Whether L came from a QR of M.
    """

    factor: Tensor
    squared: Tensor | None
    from_qr: bool

    def log_determinant(self) -> Tensor:
        """log det B = 2 Σ_i log L_ii, differentiable."""
        if self.squared is None:
            return 2 * self.factor.diagonal().log().sum()
        return _LogDeterminant.apply(self.squared, self.factor)

    def solve(self, right: Tensor) -> Tensor:
        """B⁻¹ right, (n x S), differentiable."""
        if self.squared is None:
            return torch.cholesky_solve(right, self.factor)
        return _Solve.apply(right, self.squared, self.factor)

    @torch.no_grad()
    def inverse_root(self) -> Tensor:
        """W = L⁻ᵀ, (n x n), with W Wᵀ = B⁻¹."""
        identity = torch.eye(len(self.factor), dtype=self.factor.dtype, device=self.factor.device)
        return torch.linalg.solve_triangular(self.factor.mT, identity, upper=True)

    @torch.no_grad()
    def inverse_trace(self) -> Tensor:
        """tr B⁻¹ = |L⁻¹|² in Frobenius norm, 0-d, in n³/3 multiplications."""
        return _squared_norm_of_inverse(self.factor)


def _squared_norm_of_inverse(lower: Tensor) -> Tensor:
    """Of a triangular matrix, by halves: the inverse's lower left block is -L22⁻¹ L21 L11⁻¹."""
    size = len(lower)
    if size <= _WHOLE:
        eye = torch.eye(size, dtype=lower.dtype, device=lower.device)
        return torch.linalg.solve_triangular(lower, eye, upper=False).square().sum()
    half = size // 2
    first, corner, last = lower[:half, :half], lower[half:, :half], lower[half:, half:]
    corner = torch.linalg.solve_triangular(last, corner, upper=False)
    corner = torch.linalg.solve_triangular(first, corner, upper=False, left=False)
    ends = _squared_norm_of_inverse(first) + _squared_norm_of_inverse(last)
    return ends + corner.square().sum()


def factorize(
    squared: Tensor, blocks: MakeBlocks, *inputs: Tensor, shards: Shards | None = None
) -> Factorization:
    """Factorise I + Mᵀ M.

    Parameters
    ----------
    squared
        I + Mᵀ M, (n x n).
    blocks, inputs
        Yield the blocks of rows of M, used only past the rounding limit.
    shards
        Where the rows of M are spread over processes.
    """
    detached = squared.detach()
    if not bool(torch.isfinite(detached).all()):
        raise OutOfRangeError(
            "the whitened Jacobian has NaN or infinite entries: a hyperparameter (prior precision, "
            "noise) or the network's Jacobian is out of range"
        )
    size, dtype = squared.shape[0], squared.dtype
    largest = largest_eigenvalue(detached)
    loss = rounding_loss(largest, size, dtype)
    if loss < ROUNDING_LIMIT:
        factor, info = torch.linalg.cholesky_ex(detached)
        if int(info) == 0:
            return Factorization(factor, squared if squared.requires_grad else None, False)
    remedy = (
        "a larger prior precision or noise" if dtype == torch.float64 else "dtype=torch.float64"
    )
    warnings.warn(
        f"I + Φ Φᵀ (size {size}) has largest eigenvalue {largest:.1e}: Cholesky in {dtype} would "
        f"lose {loss:.1e} of a prior variance. Working from a QR of Φ instead, which is slower; "
        f"{remedy} would do without",
        RoundingWarning,
        stacklevel=2,
    )
    identity = torch.eye(size, dtype=dtype, device=squared.device)
    triangle = _triangle(blocks, identity, inputs, shards or Shards.single())
    return Factorization(triangle.mT, None, True)


def _triangle(
    blocks: MakeBlocks, identity: Tensor, inputs: tuple[Tensor, ...], shards: Shards
) -> Tensor:
    """T, Tᵀ T = I + Mᵀ M: of each process's rows with its share of I, then of all triangles."""
    own = streamed_triangle(blocks, identity / shards.size**0.5, *inputs)
    if shards.alone:
        return own
    stacked = shards.with_rows(len(own)).gather_rows(own)
    return streamed_triangle(
        lambda rows: iter(rows.split(len(own))), torch.zeros_like(identity), stacked
    )


class _LogDeterminant(torch.autograd.Function):
    """log det B; its gradient is B⁻¹, cheaper than differentiating through the factorisation."""

    @staticmethod
    def forward(ctx: Any, squared: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(squared, factor)
        return 2 * factor.diagonal().log().sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        squared, factor = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return grad * torch.cholesky_inverse(factor), None
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        return grad * _Solve.apply(identity, squared, factor), None  # can be differentiated again


class _Solve(torch.autograd.Function):
    """X = B⁻¹ Y: the gradient in Y is Z = B⁻¹ G, in B it is -Z Xᵀ."""

    @staticmethod
    def forward(ctx: Any, right: Tensor, squared: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(right, squared, factor)
        return torch.cholesky_solve(right, factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        right, squared, factor = ctx.saved_tensors
        by_right = _Solve.apply(grad, squared, factor)
        solution = _Solve.apply(right, squared, factor)
        product = by_right @ solution.mT
        return by_right, -0.5 * (product + product.mT), None
