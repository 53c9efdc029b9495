"""Rows of an N·C object as data points and outputs: row `n·C + c` is output `c` of point `n`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def points_of(
    index: Any, num_data: int, num_outputs: int, device: torch.device
) -> tuple[slice | Tensor, Tensor | None]:
    """The points behind a row index, and where its rows lie among all rows of those points.

    Parameters
    ----------
    index : slice or integer tensor
        Into the N·C rows.
    num_data, num_outputs : int
        N and C.
    device : torch.device
        The device of the result.

    Returns
    -------
    points : an index into the N points, in their order if rows are None, else sorted, each once.
    rows : indices into the rows of those points, shaped like the selection; None where the index
        takes all outputs of each of the points, in order.
    """
    if isinstance(index, slice):
        start, stop, step = index.indices(num_data * num_outputs)
        if step == 1 and start % num_outputs == 0 and stop % num_outputs == 0:
            return slice(start // num_outputs, max(start, stop) // num_outputs), None
        if num_outputs == 1 and step > 0:
            return slice(start, stop, step), None
        index = torch.arange(num_data * num_outputs, device=device)[index]
    index = torch.where(index < 0, index + num_data * num_outputs, index).to(device)
    if num_outputs == 1:
        return index, None
    if index.dim() == 1 and len(index) % num_outputs == 0:
        points = index[::num_outputs] // num_outputs
        rows = points[:, None] * num_outputs + torch.arange(num_outputs, device=device)
        if torch.equal(rows.flatten(), index):
            return points, None
    points, place = torch.unique(index // num_outputs, return_inverse=True)
    return points, place * num_outputs + index % num_outputs


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
