"""What the data inform of the outputs' covariance at each training datum, differentiable.

With the posterior covariance E of the weights, C = J E Jᵀ of all outputs, and the gradient M of
some function in the blocks C_n = J_n E J_nᵀ (M = blockdiag(M_n), symmetric),

    in Σ0    ⟨dC, M⟩ = tr Σ0⁻¹ dΣ0 Σ0⁻¹ E (Jᵀ M J) E = ⟨(I - ΛC) M (I - CΛ), J dΣ0 Jᵀ⟩
    in Λ     ⟨dC, M⟩ = -Σ_m tr dΛ_m [C M C]_mm

The first form is for weight space: two passes over J, memory for P x P. The second is for function
space. Values are those of the posterior, accurate past the rounding limit as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lingp.inference.function_space import FunctionSpace
from lingp.inference.posterior import Posterior
from lingp.inference.weight_space import WeightSpace
from lingp.linalg.first_order import first_order
from lingp.operators import gram

_UNRESOLVED = 1e4  # in units of rounding: D_n below this has lost its digits to cancellation


def training_covariance(posterior: Posterior, root: Tensor) -> tuple[Tensor, Tensor]:
    """C_n, what the data inform of it (N x C x C), and D_n = I - R_nᵀ C_n R_n (N x K x K).

    Parameters
    ----------
    posterior
        A posterior, with a graph where gradients are wanted.
    root
        Its R_n written out, (N x C x K).
    """
    covariance: Tensor = _TrainingCovariance.apply(posterior, posterior.variances, root)
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    inner = eye - root.mT @ covariance @ root
    exact = _inner_values(posterior, inner.detach())
    return covariance, inner + (exact - inner.detach())


@torch.no_grad()
def _inner_values(posterior: Posterior, inner: Tensor) -> Tensor:
    """D_n without cancellation: of a datum alone in its direction, D_n is near zero."""
    num_data, rank = inner.shape[:2]
    if isinstance(posterior, FunctionSpace):
        inverse = torch.cholesky_inverse(posterior.factorization.factor)
        blocks = inverse.view(num_data, rank, num_data, rank)
        return blocks.diagonal(dim1=0, dim2=2).movedim(-1, 0)
    eps = torch.finfo(inner.dtype).eps
    unresolved = torch.linalg.eigvalsh(inner)[:, 0] < _UNRESOLVED * eps
    if not bool(unresolved.any()):
        return inner
    inner = inner.clone()
    size = num_data * rank**2 * inner.element_size()
    for rows in unresolved.nonzero()[:, 0].split(max(1, posterior.training.chunk_bytes // size)):
        inner[rows] = _squared_distances(posterior, rows, rank)
    return inner


def _squared_distances(posterior: Posterior, rows: Tensor, rank: int) -> Tensor:
    """D_n of some data as the minimum of |z - Φ e|² + |e|² for unit vectors z, (n x K x K).

    A sum of squares, to which errors of e are of second order.
    """
    num_data = posterior.training.num_data
    z = posterior.scale.new_zeros(num_data, rank, len(rows), rank)
    z[rows, :, torch.arange(len(rows), device=rows.device)] = torch.eye(rank).to(z)
    z = z.flatten(2)  # (N, K, n·K)
    e = torch.stack([posterior.solve(column) for column in z.unbind(-1)], -1)
    rest = torch.cat([e, (z - posterior.whitened_product(e)).flatten(0, 1)])
    rest = rest.unflatten(1, (len(rows), rank)).movedim(1, 0)  # (n, P + N·K, K)
    return rest.mT @ rest


class _TrainingCovariance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, posterior: Posterior, variances: Tensor, root: Tensor) -> Tensor:
        ctx.posterior = posterior
        ctx.save_for_backward(variances, root)
        return posterior.at_data[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        posterior, (variances, root) = ctx.posterior, ctx.saved_tensors
        found = first_order(
            lambda: _TrainingCovariance.gradients(posterior, variances, root, grad),
            grad,
            variances,
            root,
        )
        return None, *found

    @staticmethod
    def gradients(
        posterior: Posterior, variances: Tensor, root: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradients in the variances (L,) or (P,) and in R (N x C x K)."""
        grad = 0.5 * (grad + grad.mT)
        if isinstance(posterior, WeightSpace):
            by_variance, by_curvature = _weight_space_gradients(posterior, grad)
        elif isinstance(posterior, FunctionSpace):
            by_variance, by_curvature = _function_space_gradients(posterior, root, grad)
        else:
            raise TypeError(
                f"leave-one-out has gradients in weight space and in function space, not for "
                f"{type(posterior).__name__}; choose another objective or inference"
            )
        return by_variance.to(variances), 2 * by_curvature @ root


def _weight_space_gradients(posterior: WeightSpace, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients in the variances, (L,) or (P,), and in Λ (N x C x C)."""
    training, scale = posterior.training, posterior.scale
    whitened = scale.unsqueeze(-1) * training.ggn(grad) * scale
    solved = posterior.factorization.solve(posterior.factorization.solve(whitened).mT)
    by_variance = solved.diagonal() / scale.square()
    if len(posterior.variances) != len(by_variance):
        sizes = [s.stop - s.start for s in training.linearized.parameter_slices]
        by_variance = torch.stack([share.sum() for share in by_variance.split(sizes)])
    solved = scale.unsqueeze(-1) * solved * scale
    return by_variance, -training.row_blocks(solved)


def _function_space_gradients(
    posterior: FunctionSpace, root: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients in the variances, (L,) or (P,), and in Λ (N x C x C)."""
    training, (num_data, num_outputs) = posterior.training, grad.shape[:2]
    variances = posterior.variances.detach()
    kernel = gram(training.factors(), variances=variances)
    size = len(kernel)
    rooted = (root.mT @ kernel.view(num_data, num_outputs, size)).flatten(0, 1)  # Rᵀ K
    solved = posterior.factorization.solve(rooted).mT  # C R, (N·C, N·K)
    covariance = kernel - solved @ rooted
    weighted = (grad @ covariance.view(num_data, num_outputs, size)).reshape(size, size)  # M C
    # [C M C]_mm from rows m of C and columns m of M C
    columns = weighted.view(size, num_data, num_outputs).movedim(0, 1)
    by_curvature = -(covariance.view(num_data, num_outputs, size) @ columns)
    # I - ΛC = I - R (C R)ᵀ
    away = -(root @ solved.mT.reshape(num_data, -1, size)).reshape(size, size)
    away.diagonal().add_(1)
    by_columns = away.view(size, num_data, num_outputs).movedim(0, 1) @ grad  # (N, size, C)
    by_kernel = by_columns.movedim(0, 1).reshape(size, size) @ away.mT
    with torch.enable_grad():
        leaf = variances.requires_grad_()
        (by_variance,) = torch.autograd.grad(
            gram(training.factors(), variances=leaf), leaf, by_kernel
        )
    return by_variance, by_curvature
