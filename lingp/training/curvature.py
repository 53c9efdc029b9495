"""A running estimate of the GGN, for gradients of a determinant from few rows at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RunningCurvature:
    """H ≈ Σ_n Ĵ_nᵀ Λ_n Ĵ_n (P x P), an exponential average over blocks of rows.

    Without the prior, so that it stays right when the prior moves. The average is over all blocks
    until there are 1 / rate of them, and forgets older ones from then on, as the weights move.

    Parameters
    ----------
    rate
        Weight of the newest block.
    """

    def __init__(self, rate: float = 0.05) -> None:
        self.rate = rate
        self.count = 0
        self.value: Tensor | None = None

    def add(self, rooted: Tensor, share: float) -> None:
        """Take in a block's Rᵀ Ĵ (m·K x P), which stands for `share` times as many rows."""
        self.count += 1
        rate = max(self.rate, 1 / self.count)
        if self.value is None:
            self.value = rooted.new_zeros(rooted.shape[1], rooted.shape[1])
        self.value = self.value.to(rooted)
        self.value.addmm_(rooted.mT, rooted, beta=1 - rate, alpha=rate * share)

    def factor(self, scale: Tensor) -> Tensor:
        """The Cholesky factor of A = I + Σ0^{1/2} H Σ0^{1/2}; scale is Σ0^{1/2}, (P,)."""
        assert self.value is not None
        a = self.value * scale.unsqueeze(-1) * scale
        a.diagonal().add_(1)
        return torch.linalg.cholesky(a)

    def state_dict(self) -> dict[str, Any]:
        """What goes on from here to the same result."""
        return {"count": self.count, "value": None if self.value is None else self.value.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken."""
        self.count, value = state["count"], state["value"]
        self.value = None if value is None else value.clone()
