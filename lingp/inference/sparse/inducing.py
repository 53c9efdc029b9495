"""Inducing points Z: rows of the Jacobian that a sparse posterior is spanned by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.linearization import Factors, LinearizedNetwork
from lingp.linearization.inputs import Inputs
from lingp.operators import gram
from lingp.runtime.plain import storable


@storable
@dataclass(frozen=True)
class InducingPoints:
    """m rows J_Z of the Jacobian at M inputs, their kernel and their products.

    Single rows are taken from the kernel of some inputs after the other, so that memory stays a
    small multiple of the result's.

    Attributes
    ----------
    factors
        Layer factors of the M inputs.
    columns
        (m,), which of the M·C rows (data-major) are inducing points; None: all of them, m = M·C.

    Raises
    ------
    ValueError
        If `columns` isn't a list of row numbers below M·C.
    """

    factors: Factors
    columns: Tensor | None = None

    def __post_init__(self) -> None:
        if self.columns is None:
            return
        rows = self.factors.shape[0]
        if self.columns.dtype != torch.long or self.columns.dim() != 1 or not len(self.columns):
            raise ValueError(
                f"columns: got {self.columns.dtype} of shape {tuple(self.columns.shape)}; expected "
                "a 1-d integer tensor of one or more row numbers n·C + c"
            )
        if int(self.columns.min()) < 0 or int(self.columns.max()) >= rows:
            raise ValueError(
                f"columns: got numbers from {int(self.columns.min())} to "
                f"{int(self.columns.max())}; expected 0 to {rows - 1}, the rows of "
                f"{self.num_inputs} inputs with {self.factors.num_outputs} outputs each"
            )
        object.__setattr__(self, "columns", self.columns.to(self.factors.device))

    @property
    def num_inputs(self) -> int:
        """M."""
        return self.factors.num_data

    @property
    def num_points(self) -> int:
        """m, the number of rows."""
        return self.factors.shape[0] if self.columns is None else len(self.columns)

    def cross(self, factors: Factors, variances: Tensor, groups: Tensor | None = None) -> Tensor:
        """K(x, Z) = J(x) Σ0 J_Zᵀ, (n·C x m), differentiable in the variances as `gram` is."""
        if self.columns is None:
            return gram(factors, self.factors, variances, groups)
        pieces = [
            gram(factors, self.factors.rows(inputs), variances, groups)[:, columns]
            for inputs, columns in self._pieces(self.columns)
        ]
        return torch.cat(pieces, 1)[:, self.columns.argsort(stable=True).argsort()]

    def kernel(self, variances: Tensor, groups: Tensor | None = None) -> Tensor:
        """K(Z, Z), (m x m), symmetric to the last bit, differentiable as `cross` is."""
        if self.columns is None:
            return gram(self.factors, variances=variances, groups=groups)
        pieces = [
            self.cross(self.factors.rows(inputs), variances, groups)[rows]
            for inputs, rows in self._pieces(self.columns)
        ]
        kernel = torch.cat(pieces)[self.columns.argsort(stable=True).argsort()]
        return 0.5 * (kernel + kernel.mT)

    def apply(self, e: Tensor, scale: Tensor) -> Tensor:
        """J_Z Σ0^{1/2} e: (P x S) -> (m x S), for `scale` (P,), the diagonal of Σ0^{1/2}."""
        rows = self.factors.matmul(scale.unsqueeze(-1) * e).flatten(0, 1)  # (M·C, S)
        return rows if self.columns is None else rows[self.columns]

    def apply_t(self, b: Tensor, scale: Tensor) -> Tensor:
        """Σ0^{1/2} J_Zᵀ b: (m x S) -> (P x S), the transpose of `apply`."""
        if self.columns is not None:
            b = b.new_zeros(self.factors.shape[0], b.shape[1]).index_add(0, self.columns, b)
        u = b.unflatten(0, (self.num_inputs, self.factors.num_outputs))
        return scale.unsqueeze(-1) * self.factors.t_matmul(u)

    def _pieces(self, columns: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Ranges of inputs with about m rows in all, and which of them are wanted, ascending."""
        outputs = self.factors.num_outputs
        width = -(-len(columns) // outputs)
        ascending = columns.sort().values
        for start in range(0, self.num_inputs, width):
            stop = min(start + width, self.num_inputs)
            first, last = torch.searchsorted(
                ascending, ascending.new_tensor([start * outputs, stop * outputs])
            ).tolist()
            if last > first:
                yield slice(start, stop), ascending[first:last] - start * outputs


def points_at(
    linearized: LinearizedNetwork, x: Inputs, columns: Tensor | None = None
) -> InducingPoints:
    """Inducing points at given inputs.

    Parameters
    ----------
    linearized
        The network.
    x
        M inputs, any that the network takes.
    columns
        (m,), which of the M·C rows; None: all outputs of each input.
    """
    with torch.no_grad():
        _, factors = linearized.factors(x)
    return InducingPoints(factors, columns)
