"""Which axis of a tensor inside a network is the example axis, found by running two batch sizes.

A layer may see the batch first (N, ...), elsewhere (time, N, ...), or folded with other axes
(N·time, ...) or (time·N, ...). Shapes at two batch sizes, and values where shapes leave two readings,
tell which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The example axis `dim`, perhaps folded with others: N·R (`"data_major"`) or R·N."""

    dim: int
    order: Literal["plain", "data_major", "position_major"] = "plain"

    def rows_first(self, t: Tensor, num_data: int, lead: int = 0) -> Tensor:
        """Bring the example axis to the front as rows (N·R, ...), data-major.

        `lead` axes before the network's own (the outputs of a batched gradient) stay in front.
        """
        dim = self.dim + lead
        if self.order == "plain":
            return t.movedim(dim, lead)
        if self.order == "data_major":
            return t if dim == lead else t.unflatten(dim, (num_data, -1)).movedim(dim, lead)
        t = t.unflatten(dim, (-1, num_data)).transpose(dim, dim + 1)
        if dim == lead:
            return t.flatten(lead, lead + 1)
        return t.movedim(dim, lead)


def find_layout(small: Tensor, large: Tensor, sizes: tuple[int, int]) -> Layout | None:
    """The layout of a tensor seen at batch sizes `sizes`, whose first `sizes[0]` examples are the same.

    None when the tensor has no example axis, or when no reading explains both shapes.
    """
    if small.dim() != large.dim():
        return None
    changed = [d for d in range(small.dim()) if small.shape[d] != large.shape[d]]
    if len(changed) != 1:
        return None
    dim, (n, m) = changed[0], sizes
    repeat, rest = divmod(small.shape[dim], n)
    if rest or large.shape[dim] != m * repeat:
        return None
    if repeat == 1:
        return Layout(dim)
    data_major = large.narrow(dim, 0, n * repeat)
    if _close(small, data_major):
        return Layout(dim, "data_major")
    position_major = large.unflatten(dim, (repeat, m)).narrow(dim + 1, 0, n)
    if _close(small.unflatten(dim, (repeat, n)), position_major):
        return Layout(dim, "position_major")
    return None


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    tolerance = torch.finfo(a.dtype).eps ** 0.5
    return torch.allclose(
        a, b, rtol=tolerance, atol=tolerance * float(a.abs().max().clamp(min=1e-30))
    )
