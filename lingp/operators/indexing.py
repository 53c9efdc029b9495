"""Rows of an N·C object as data points and outputs: row `n·C + c` is output `c` of point `n`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def whole_points(index: Any, num_data: int, num_outputs: int) -> slice | Tensor | None:
    """The points that a row index selects, if it takes all outputs of each of them, in order.

    Parameters
    ----------
    index : slice or integer tensor
        Into the N·C rows.
    num_data, num_outputs : int
        N and C.

    Returns
    -------
    slice, tensor or None
        An index into the N points, or None when the rows don't make up whole points.
    """
    if isinstance(index, slice):
        start, stop, step = index.indices(num_data * num_outputs)
        if step == 1 and start % num_outputs == 0 and stop % num_outputs == 0:
            return slice(start // num_outputs, max(start, stop) // num_outputs)
        return slice(start, stop, step) if num_outputs == 1 and step > 0 else None
    index = _nonnegative(index, num_data * num_outputs)
    if num_outputs == 1:
        return index
    if index.dim() != 1 or len(index) % num_outputs:
        return None
    points = index[::num_outputs] // num_outputs
    outputs = torch.arange(num_outputs, device=index.device)
    rows = (points[:, None] * num_outputs + outputs).flatten()
    return points if torch.equal(rows, index) else None


def points_and_rows(
    index: Any, num_data: int, num_outputs: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The distinct points behind a row index, and where its rows lie among the rows of those.

    Returns
    -------
    points : (U,) sorted indices into the N points.
    rows : indices into the U·C rows of those points, shaped like the selection.
    """
    if isinstance(index, slice):
        index = torch.arange(num_data * num_outputs, device=device)[index]
    index = _nonnegative(index, num_data * num_outputs).to(device)
    points, place = torch.unique(index // num_outputs, return_inverse=True)
    return points, place * num_outputs + index % num_outputs


def _nonnegative(index: Tensor, size: int) -> Tensor:
    return torch.where(index < 0, index + size, index)


def fold_columns(rhs: Tensor) -> tuple[Tensor, torch.Size]:
    """A batch of right-hand sides (*batch, n, k) as one matrix (n, batch·k), and what undoes it."""
    if rhs.dim() == 1:
        return rhs.unsqueeze(-1), rhs.shape[:0]
    shape = torch.Size((*rhs.shape[:-2], rhs.shape[-1]))
    return rhs.movedim(-2, 0).reshape(rhs.shape[-2], -1), shape


def unfold_columns(out: Tensor, shape: torch.Size) -> Tensor:
    """Undo `fold_columns` on a product (m, batch·k): (*batch, m, k)."""
    if not shape:
        return out.squeeze(-1)
    return out.view(-1, *shape).movedim(0, -2)
