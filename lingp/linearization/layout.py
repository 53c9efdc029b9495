"""Which axis of a tensor inside a network is the example axis, found by running two batch sizes.

A layer may see the batch first (N, ...), elsewhere (time, N, ...), or folded with other axes
(N·time, ...) or (time·N, ...). Shapes at two batch sizes, and values where shapes leave two
readings, tell which.
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


def find_layouts(small: Tensor, large: Tensor, sizes: tuple[int, int]) -> tuple[Layout, ...]:
    """Layouts that explain a tensor seen at two batch sizes, one the beginning of the other.

    None for a tensor without example axis; two when its values are the same at all positions.
    """
    if small.dim() != large.dim():
        return ()
    changed = [d for d in range(small.dim()) if small.shape[d] != large.shape[d]]
    if len(changed) != 1:
        return ()
    dim, (n, m) = changed[0], sizes
    repeat, rest = divmod(small.shape[dim], n)
    if rest or large.shape[dim] != m * repeat:
        return ()
    if repeat == 1:
        return (Layout(dim),)
    found = []
    if _close(small, large.narrow(dim, 0, n * repeat)):
        found.append(Layout(dim, "data_major"))
    position_major = large.unflatten(dim, (repeat, m)).narrow(dim + 1, 0, n)
    if _close(small.unflatten(dim, (repeat, n)), position_major):
        found.append(Layout(dim, "position_major"))
    return tuple(found)


def agree(first: tuple[Layout, ...], second: tuple[Layout, ...]) -> tuple[Layout, Layout] | None:
    """The one reading of two tensors in which examples lie in the same order, if there is one."""
    pairs = [(a, b) for a in first for b in second if a.order == b.order]
    return pairs[0] if len(pairs) == 1 else None


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    tolerance = torch.finfo(a.dtype).eps ** 0.5
    return torch.allclose(
        a, b, rtol=tolerance, atol=tolerance * float(a.abs().max().clamp(min=1e-30))
    )
