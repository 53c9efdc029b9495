"""The covariance of the weights, written down."""

from __future__ import annotations

from dataclasses import dataclass

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
