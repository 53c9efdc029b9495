"""The covariance of the weights, written down."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class WeightCovariance:
    """Cov e = a I + V D Vᵀ of whitened weights, V (P x r) and D diagonal.

        function space    I - U Uᵀ,                      U = Φᵀ L⁻ᵀ,  L Lᵀ = I + Φ Φᵀ
        weight space      W Wᵀ,                          W = L⁻ᵀ,     L Lᵀ = I + Φᵀ Φ
        sparse            s (I - Q Qᵀ) + Q A⁻¹ Qᵀ

    Attributes
    ----------
    identity
        a.
    columns
        V.
    signs
        D, (r,).
    """

    identity: float
    columns: Tensor
    signs: Tensor

    def between(self, rows: Tensor) -> Tensor:
        """A Cov e Aᵀ for rows A of a whitened Jacobian, (... x n x P), differentiable in them."""
        product = rows @ self.columns
        covariance = (product * self.signs) @ product.mT
        return covariance + self.identity * (rows @ rows.mT) if self.identity else covariance

    def double(self) -> WeightCovariance:
        """The same in float64."""
        return replace(self, columns=self.columns.double(), signs=self.signs.double())

    def matmul(self, v: Tensor) -> Tensor:
        """Cov e · v, (P,) or (P x S)."""
        return self.identity * v + (self.columns * self.signs) @ (self.columns.mT @ v)

    def diagonal(self) -> Tensor:
        """The variance of each weight, (P,)."""
        return self.identity + self.columns.square() @ self.signs

    def rows(self, group: Tensor) -> Tensor:
        """The covariance of some weights (k,) with all, (k x P)."""
        made = (self.columns[group] * self.signs) @ self.columns.mT
        made[torch.arange(len(group), device=group.device), group] += self.identity
        return made

    def blocks(self, groups: Tensor) -> Tensor:
        """The covariance within groups of equal size, (u x k) -> (u x k x k)."""
        columns = self.columns[groups]  # (u, k, r)
        made = (columns * self.signs) @ columns.mT
        made.diagonal(dim1=-2, dim2=-1).add_(self.identity)
        return made

    def given(self, group: Tensor) -> WeightCovariance:
        """That of the other weights once those of a group (k,) are known, S - S_:g S_gg⁻¹ S_g:.

        The weights of the group are independent of the others in it.
        """
        factor = torch.linalg.cholesky(self.blocks(group.unsqueeze(0))[0])
        half = torch.linalg.solve_triangular(factor, self.rows(group), upper=False)  # (k, P)
        columns = torch.cat([self.columns, half.mT], 1)
        columns[group] = 0  # rounding brings no weight back
        signs = torch.cat([self.signs, -self.signs.new_ones(len(group))])
        return replace(self, columns=columns, signs=signs)
