"""Arguments of scores: tensors and arrays as float64 arrays, checked; scores as they are asked."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
Reduction = Literal["mean", "none"]

_SUM_TOLERANCE = 1e-3  # probabilities in half precision sum to one like this


def as_array(value: Any, name: str, *, missing: bool = False) -> Array:
    """A tensor, array or sequence of real numbers as a float64 array.

    Parameters
    ----------
    value
        What came.
    name
        What to call it in errors.
    missing
        Whether NaN is accepted.

    Raises
    ------
    TypeError
        If it isn't made of real numbers.
    ValueError
        If it has NaN, where that is not accepted.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name}: expected real numbers, got {array.dtype}")
    array = array.astype(np.float64)
    if not missing and np.isnan(array).any():
        raise ValueError(f"{name}: has {int(np.isnan(array).sum())} NaN; remove them first")
    return array


def same_shape(**arrays: Array) -> None:
    """Raise unless all arrays have the shape of the first: nothing is broadcast by accident."""
    (first, one), *others = arrays.items()
    for name, other in others:
        if other.shape != one.shape:
            raise ValueError(
                f"{name}: has shape {other.shape}, but {first} has {one.shape}; give both the same"
            )
    if one.size == 0:
        raise ValueError(f"{first}: is empty")


def positive(array: Array, name: str) -> None:
    """Raise unless all numbers are finite and not negative."""
    if not (np.isfinite(array) & (array >= 0)).all():
        bad = array[~(np.isfinite(array) & (array >= 0))][0]
        raise ValueError(f"{name}: expected finite numbers >= 0, got {bad:g}")


def between_zero_and_one(array: Array, name: str) -> None:
    """Raise unless all numbers are strictly between 0 and 1."""
    outside = ~((array > 0) & (array < 1))
    if outside.any():
        raise ValueError(f"{name}: expected numbers between 0 and 1, got {array[outside][0]:g}")


def class_probabilities(probs: Any, labels: Any) -> tuple[Array, NDArray[np.int64]]:
    """Probabilities (n x K) whose rows sum to one, and labels 0 .. K-1, (n,).

    (n,) probabilities are those of class 1 of two.
    """
    p = as_array(probs, "probs")
    if p.ndim == 1:
        p = np.stack([1 - p, p], axis=1)
    if p.ndim != 2 or p.shape[1] < 2:
        raise ValueError(
            "probs: expected (n, K) with one column for each of K >= 2 classes, or (n,) of class "
            f"1, got shape {np.shape(probs)}"
        )
    if len(p) == 0:
        raise ValueError("probs: is empty")
    total = p.sum(axis=1, keepdims=True)
    if (p < 0).any() or (np.abs(total - 1) > _SUM_TOLERANCE).any():
        row = int(np.argmax(np.abs(total - 1)[:, 0] + (p < 0).any(axis=1)))
        raise ValueError(
            f"probs: expected rows of numbers >= 0 that sum to 1, got {p[row]} in row {row}; "
            "logits go through a softmax first"
        )
    y = as_array(labels, "labels")
    if y.shape != (len(p),):
        raise ValueError(f"labels: expected one label per row ({len(p)},), got shape {y.shape}")
    valid = (y >= 0) & (y < p.shape[1]) & (y == np.round(y))
    if not valid.all():
        raise ValueError(
            f"labels: expected whole numbers 0 .. {p.shape[1] - 1}, the column of each row's "
            f"class, got {y[~valid][0]:g}"
        )
    return p / total, y.astype(np.int64)


def reduced(values: Array, reduction: Reduction) -> Any:
    """The mean of what isn't NaN, as a float, or all values.

    Raises
    ------
    ValueError
        If `reduction` is unknown.
    """
    if reduction == "none":
        return values
    if reduction != "mean":
        raise ValueError(f'reduction: expected "mean" or "none", got {reduction!r}')
    known = values[~np.isnan(values)]
    if not len(known):
        raise ValueError("y: all targets are missing (NaN)")
    return float(known.mean())
