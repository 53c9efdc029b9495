"""Products of which one triangle is enough."""

from __future__ import annotations

from torch import Tensor


def add_product_(
    kernel: Tensor, left: Tensor, right: Tensor, symmetric: bool, alpha: float = 1.0
) -> None:
    """`kernel += alpha left rightᵀ`, only the lower triangle of row blocks if symmetric."""
    if not symmetric:
        kernel.addmm_(left, right.T, alpha=alpha)
        return
    step = max(64, -(-len(left) // 8))
    for start in range(0, len(left), step):
        stop = min(start + step, len(left))
        kernel[start:stop, :stop].addmm_(left[start:stop], right[:stop].T, alpha=alpha)
