"""Batches of inputs cut into pieces, and picked from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from lingp.linearization import LinearizedNetwork
from lingp.linearization.inputs import Inputs, map_inputs, num_rows

Batch = tuple[Inputs, Tensor, Tensor | None]
"""Inputs, targets and weights of some rows; no weights stand for ones."""

_PROBED_ROWS = 4


def cut_batches(
    linearized: LinearizedNetwork, batches: Iterable[Batch], chunk_bytes: int
) -> Iterator[Batch]:
    """The batches in pieces whose factors take at most `chunk_bytes`, or one row."""
    size = 0
    for x, y, w in batches:
        if size == 0 and len(y) > _PROBED_ROWS:
            few = map_inputs(lambda t: t[:_PROBED_ROWS], x)
            _, factors = linearized.factors(few)
            size = max(1, chunk_bytes * factors.num_data // max(1, factors.nbytes))
        step = size or len(y)  # so few rows are not worth a look
        for start in range(0, len(y), step):
            rows = slice(start, start + step)
            piece = x if len(y) <= step else map_inputs(lambda t, r=rows: t[r], x)  # type: ignore[misc]
            yield piece, y[rows], None if w is None else w[rows]


def inputs_of(batches: Sequence[Inputs], index: Tensor) -> Iterator[Inputs]:
    """The rows of each batch that are among `index`, ascending row numbers of all batches."""
    start = 0
    for x in batches:
        stop = start + num_rows(x)
        here = index[(index >= start) & (index < stop)] - start
        if len(here):
            yield map_inputs(lambda t, rows=here: t[rows.to(t.device)], x)  # type: ignore[misc]
        start = stop
