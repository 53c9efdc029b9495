"""The covariance of the outputs of each datum, from a covariance of all data that stays lazy."""

from __future__ import annotations

from linear_operator.operators import LinearOperator, MatmulLinearOperator, SumLinearOperator
from torch import Tensor

from lingp.operators.ntk import NTKLinearOperator


def output_blocks(covariance: LinearOperator, num_outputs: int) -> Tensor:
    """The C x C blocks on the diagonal, (... x N x C x C), rows `n·C + c`.

    The matrix is formed for kinds of operators only that aren't kernels, products, or sums of them.

    Parameters
    ----------
    covariance
        (... x N·C x N·C).
    num_outputs
        C.
    """
    covariance = covariance.evaluate_kernel()
    rows = (covariance.shape[-1] // num_outputs, num_outputs)
    if isinstance(covariance, NTKLinearOperator):
        return covariance.diagonal_blocks()
    if isinstance(covariance, SumLinearOperator):
        first, *others = (output_blocks(part, num_outputs) for part in covariance.linear_ops)
        return sum(others, start=first)
    if isinstance(covariance, MatmulLinearOperator):
        left = covariance.left_linear_op.to_dense().unflatten(-2, rows)
        right = covariance.right_linear_op.to_dense().mT.unflatten(-2, rows)
        return left @ right.mT
    grid = covariance.to_dense().unflatten(-1, rows).unflatten(-3, rows)  # (..., N, C, N, C)
    return grid.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
