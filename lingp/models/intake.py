"""Training data as users have it, brought to batches of (inputs, targets, weights) tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lingp.linearization.inputs import Inputs, map_inputs, num_rows
from lingp.operators.batches import Batch

BATCH_SIZE = 256


def as_tensor(value: Any, name: str, *, missing: bool | None = None) -> Tensor:
    """A tensor from a tensor or anything array-like, refusing NaN and infinite values.

    Parameters
    ----------
    value
        A tensor, a NumPy array, a data frame, nested lists of numbers.
    name
        What to call it in errors.
    missing
        Whether NaN is accepted, for what was not observed; None where it never makes sense.
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
    if tensor.is_floating_point():
        bad = tensor.isinf() if missing else ~tensor.isfinite()
        if bool(bad.any()):
            rows = bad.reshape(len(bad), -1).any(1).nonzero() if bad.dim() else bad.nonzero()
            first = f", first in row {int(rows[0])}" if rows.numel() else ""
            kind = "infinite" if missing else "NaN or infinite"
            remedy = "remove or impute them"
            if missing is False:
                remedy += ', or take NaN as not observed with fit(..., missing="nan")'
            raise ValueError(f"{name}: has {int(bad.sum())} {kind} values{first}; {remedy}")
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


def as_batches(
    data: Any, y: Any = None, sample_weight: Any = None, *, missing: bool = False
) -> Iterator[Batch]:
    """Batches from arrays, a Dataset, a DataLoader or any iterable of batches.

    What is iterated is what counts: a loader that samples or drops gives just the rows it gives.

    Parameters
    ----------
    data, y
        Arrays, or what gives (inputs, targets) or (inputs, targets, weights).
    sample_weight
        One weight per row of arrays, (N,).
    missing
        Whether targets may be NaN.
    """
    if y is None and isinstance(data, tuple) and len(data) == 2 and _is_array(data[1]):
        data, y = data
    if y is not None:
        yield from _from_arrays(data, y, sample_weight, missing)
    elif _is_array(data) or isinstance(data, (Mapping, str)):
        raise TypeError(
            f"y: missing; X is {type(data).__name__}: call fit(X, y), or give a Dataset, a "
            "DataLoader or an iterable of (inputs, targets) batches"
        )
    elif sample_weight is not None:
        raise TypeError(
            f"sample_weight: goes with arrays, but X is {type(data).__name__}; let it give "
            "(inputs, targets, weights)"
        )
    elif isinstance(data, (Iterable, Dataset)):
        yield from _from_iterable(data, missing)
    else:
        raise TypeError(
            f"X: expected arrays, a Dataset, a DataLoader or an iterable of (inputs, targets) "
            f"batches, got {type(data).__name__}"
        )


def validation_batches(data: Any, *, missing: bool) -> list[Batch]:
    """Batches of validation data: (X, y), (X, y, weights) or whatever gives batches.

    A list: they are gone through more than once, which a generator wouldn't allow.
    """
    if isinstance(data, tuple) and len(data) in (2, 3) and not isinstance(data[1], tuple):
        return list(as_batches(*data, missing=missing))
    return list(as_batches(data, missing=missing))


def _from_arrays(x: Any, y: Any, sample_weight: Any, missing: bool) -> Iterator[Batch]:
    inputs, targets = as_inputs(x, "X"), as_tensor(y, "y", missing=missing)
    _check_rows(inputs, targets, "")
    weights = None
    if sample_weight is not None:
        weights = as_weights(sample_weight, len(targets), "sample_weight")
    # copied at once: many small copies between large temporaries would fragment the heap
    inputs, targets, weights = _own(inputs, targets, weights)
    for start in range(0, len(targets), BATCH_SIZE):
        rows = slice(start, start + BATCH_SIZE)
        part = None if weights is None else weights[rows]
        yield rows_of(inputs, rows), targets[rows], part


def _from_iterable(data: Any, missing: bool) -> Iterator[Batch]:
    batches: Iterable[Any] = data
    if isinstance(data, Dataset):
        # a generator of our own: a loader without one draws its seed from the global one
        batches = DataLoader(data, batch_size=BATCH_SIZE, generator=torch.Generator())
        kind = "IterableDataset" if isinstance(data, IterableDataset) else "Dataset"
    else:
        kind = type(data).__name__
    for number, batch in enumerate(batches):
        where = f" in batch {number}"
        if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
            got = type(batch).__name__
            if isinstance(batch, (tuple, list)):
                got += f" of {len(batch)}"
            raise TypeError(
                f"X: {kind} must give (inputs, targets) or (inputs, targets, weights); got "
                f"{got}{where}. {_SEVERAL_INPUTS}. For two arrays call fit(X, y)"
            )
        inputs = as_inputs(batch[0], f"inputs{where}")
        targets = as_tensor(batch[1], f"targets{where}", missing=missing)
        _check_rows(inputs, targets, where)
        weights = None
        if len(batch) == 3:
            weights = as_weights(batch[2], len(targets), f"weights{where}")
        yield _own(inputs, targets, weights)


_SEVERAL_INPUTS = "Several inputs go into one tuple or dict: ((x1, x2), y)"


def as_weights(value: Any, num_rows: int, name: str) -> Tensor:
    """One weight per row, finite and not negative, (N,) float64."""
    weights = as_tensor(value, name).to(torch.float64)
    if weights.shape != (num_rows,):
        raise ValueError(
            f"{name}: expected one weight per row, ({num_rows},), got shape "
            f"{tuple(weights.shape)}. A batch of three is (inputs, targets, weights). "
            f"{_SEVERAL_INPUTS}"
        )
    if bool((weights < 0).any()):
        row = int((weights < 0).nonzero()[0])
        raise ValueError(f"{name}: expected weights >= 0, got {weights[row].item():g} in row {row}")
    return weights


def as_row_numbers(rows: Any, num_rows: int) -> Tensor:
    """Numbers of rows, each once, from numbers or from one truth value per row."""
    if isinstance(rows, int):
        rows = [rows]
    index = torch.as_tensor(rows, device="cpu")
    if index.dtype == torch.bool and index.shape == (num_rows,):
        return index.nonzero().squeeze(-1)
    if index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise ValueError(
            f"rows: expected row numbers below {num_rows} or {num_rows} truth values, got "
            f"{index.dtype} of shape {tuple(index.shape)}"
        )
    index = index.long()
    if len(index) and not (int(index.min()) >= 0 and int(index.max()) < num_rows):
        raise ValueError(
            f"rows: expected numbers from 0 to {num_rows - 1}, got {int(index.min())} to "
            f"{int(index.max())}"
        )
    if len(index.unique()) < len(index):
        raise ValueError("rows: names a row twice")
    return index


def _own(inputs: Inputs, targets: Tensor, weights: Tensor | None) -> Batch:
    """A copy: factors hold on to inputs, and what the user changes later must not reach them."""
    own_weights = None if weights is None else weights.clone()
    return map_inputs(torch.clone, inputs), targets.clone(), own_weights


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


def as_known(value: Any, num_rows: int, num_targets: int) -> Tensor:
    """The known quantity of each target to predict, (n x T), from one number or all of them."""
    known = as_tensor(value, "known")
    if known.dim() == 0:
        return known.expand(num_rows, num_targets)
    if len(known) != num_rows or known.numel() != num_rows * num_targets:
        raise ValueError(
            f"known: expected one number, or one for each of {num_rows} rows and {num_targets} "
            f"targets, got shape {tuple(known.shape)}"
        )
    return known.reshape(num_rows, num_targets)
