"""Training data as users have it, brought to batches of (inputs, targets) tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lingp.linearization.inputs import Inputs, map_inputs, num_rows

BATCH_SIZE = 256


def as_tensor(value: Any, name: str) -> Tensor:
    """A tensor from a tensor or anything array-like, refusing NaN and infinite values.

    Parameters
    ----------
    value
        A tensor, a NumPy array, a data frame, nested lists of numbers.
    name
        What to call it in errors.
    """
    if isinstance(value, Tensor):
        tensor = value.detach()
    else:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(
                f"{name}: expected numbers, got {type(value).__name__} with elements of type "
                f"{array.dtype}"
            )
        # a copy: arrays may be read-only or have negative strides, and may change later
        tensor = torch.from_numpy(np.array(array, copy=True, order="C"))
    if tensor.is_complex():
        raise TypeError(f"{name}: expected real numbers, got {tensor.dtype}")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        bad = ~torch.isfinite(tensor)
        rows = bad.reshape(len(bad), -1).any(1).nonzero() if bad.dim() else bad.nonzero()
        first = f", first in row {int(rows[0])}" if rows.numel() else ""
        raise ValueError(
            f"{name}: has {int(bad.sum())} NaN or infinite values{first}; remove or impute them"
        )
    return tensor


def as_inputs(x: Any, name: str = "X") -> Inputs:
    """Network inputs from a tensor or array, or a tuple, list or dict of them."""
    if isinstance(x, Mapping):
        inputs: Inputs = {key: as_tensor(value, f"{name}[{key!r}]") for key, value in x.items()}
    elif isinstance(x, (tuple, list)) and any(isinstance(v, (Tensor, np.ndarray)) for v in x):
        parts = [as_tensor(value, f"{name}[{i}]") for i, value in enumerate(x)]
        inputs = tuple(parts) if isinstance(x, tuple) else parts
    else:
        inputs = as_tensor(x, name)
        if inputs.dim() == 0:
            raise ValueError(f"{name}: expected rows of inputs, got a single number")
    if num_rows(inputs) == 0:
        raise ValueError(f"{name}: has no rows")
    return inputs


def rows_of(x: Inputs, rows: slice) -> Inputs:
    """Some rows of all tensors of an input."""
    return map_inputs(lambda t: t[rows], x)


def row_batches(x: Inputs, size: int) -> Iterator[Inputs]:
    """Successive batches of at most `size` rows."""
    for start in range(0, num_rows(x), size):
        yield rows_of(x, slice(start, start + size))


def as_batches(data: Any, y: Any = None) -> Iterator[tuple[Inputs, Tensor]]:
    """Batches of (inputs, targets) from arrays, a Dataset, a DataLoader or any iterable of batches.

    What is iterated is what counts: a loader that samples or drops gives just the rows it gives.
    """
    if y is not None:
        yield from _from_arrays(data, y)
    elif isinstance(data, tuple) and len(data) == 2 and _is_array(data[1]):
        yield from _from_arrays(*data)
    elif _is_array(data) or isinstance(data, (Mapping, str)):
        raise TypeError(
            f"y: missing; X is {type(data).__name__}: call fit(X, y), or give a Dataset, a "
            "DataLoader or an iterable of (inputs, targets) batches"
        )
    elif isinstance(data, (Iterable, Dataset)):
        yield from _from_iterable(data)
    else:
        raise TypeError(
            f"X: expected arrays, a Dataset, a DataLoader or an iterable of (inputs, targets) "
            f"batches, got {type(data).__name__}"
        )


def _from_arrays(x: Any, y: Any) -> Iterator[tuple[Inputs, Tensor]]:
    inputs, targets = as_inputs(x, "X"), as_tensor(y, "y")
    _check_rows(inputs, targets, "")
    for start in range(0, len(targets), BATCH_SIZE):
        rows = slice(start, start + BATCH_SIZE)
        yield _own(rows_of(inputs, rows), targets[rows])


def _from_iterable(data: Any) -> Iterator[tuple[Inputs, Tensor]]:
    batches: Iterable[Any] = data
    if isinstance(data, Dataset):
        # a generator of our own: a loader without one draws its seed from the global one
        batches = DataLoader(data, batch_size=BATCH_SIZE, generator=torch.Generator())
        kind = "IterableDataset" if isinstance(data, IterableDataset) else "Dataset"
    else:
        kind = type(data).__name__
    for number, batch in enumerate(batches):
        where = f" in batch {number}"
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            got = type(batch).__name__
            if isinstance(batch, (tuple, list)):
                got += f" of {len(batch)}"
            raise TypeError(
                f"X: {kind} must give pairs (inputs, targets); got {got}{where}. Several inputs "
                "go into one tuple or dict: ((x1, x2), y). For two arrays call fit(X, y)"
            )
        inputs = as_inputs(batch[0], f"inputs{where}")
        targets = as_tensor(batch[1], f"targets{where}")
        _check_rows(inputs, targets, where)
        yield _own(inputs, targets)


def _own(inputs: Inputs, targets: Tensor) -> tuple[Inputs, Tensor]:
    """A copy: factors hold on to inputs, and what the user changes later must not reach them."""
    return map_inputs(torch.clone, inputs), targets.clone()


def _check_rows(inputs: Inputs, targets: Tensor, where: str) -> None:
    if targets.dim() == 0:
        raise ValueError(f"y: expected one target per row{where}, got a single number")
    if num_rows(inputs) != len(targets):
        raise ValueError(
            f"X and y: {num_rows(inputs)} rows of inputs, but {len(targets)} targets{where}"
        )


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) or (
        hasattr(value, "__array__") and not isinstance(value, Dataset)
    )
