"""Checks of targets that likelihoods share: shape, dtype, range."""

from __future__ import annotations

import torch
from torch import Tensor


def flatten_targets(
    y: Tensor,
    target_shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    allow_missing: bool = False,
    name: str = "y",
) -> Tensor:
    """Targets of exactly the expected shape, as (N x T) in `dtype`.

    (N,) and (N, 1) stand for each other; nothing is ever broadcast.

    Parameters
    ----------
    y
        Targets, first axis the data.
    target_shape
        Shape of one datum's targets.
    dtype
        Of the result.
    allow_missing
        Whether NaN is accepted.
    name
        What to call the targets in errors.
    """
    if y.dim() == 0:
        raise ValueError(f"{name}: expected one target per row of X, got a single number")
    shape = tuple(y.shape[1:])
    if shape != target_shape and {shape, target_shape} != {(), (1,)}:
        raise ValueError(
            f"{name}: has shape {with_rows(shape)}, but the network's output asks for "
            f"{with_rows(target_shape)}; give targets of that shape"
        )
    if y.is_complex():
        raise TypeError(f"{name}: expected real targets, got {y.dtype}")
    flat = y.reshape(y.shape[0], -1).to(dtype)
    if not allow_missing and bool(flat.isnan().any()):
        raise ValueError(f"{name}: has missing (NaN) targets, which this likelihood can't use")
    return flat


def flatten_pairs(
    y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype, pair: str
) -> Tensor:
    """Targets with their known quantity along a last axis of two, as (N x C x 2).

    Parameters
    ----------
    y
        Targets, first axis the data; an output axis of one may be left out.
    output_shape
        Shape of the network's output for one datum.
    dtype
        Of the result.
    pair
        What the two are, for errors.
    """
    expected = (*output_shape, 2)
    given = tuple(y.shape[1:])
    if given != expected and {given, expected} != {(2,), (1, 2)}:
        raise ValueError(
            f"y: has shape {with_rows(given)}, but this likelihood takes {pair} along a last axis "
            f"of two, {with_rows(expected)}; stack them: torch.stack([first, second], -1)"
        )
    flat = flatten_targets(y.reshape(-1, *expected), expected, dtype, allow_missing=True)
    values, known = flat.reshape(y.shape[0], -1, 2).unbind(-1)
    # what stands beside a missing value is never used
    return torch.stack([values, torch.where(values.isnan(), torch.nan, known)], -1)


def check_labels(
    y: Tensor, target_shape: tuple[int, ...], num_classes: int, dtype: torch.dtype
) -> Tensor:
    """Class labels 0 .. K-1 as (N x T) in `dtype`, NaN where missing.

    Parameters
    ----------
    y
        Targets, first axis the data.
    target_shape
        Shape of one datum's labels.
    num_classes
        K.
    dtype
        Of the result.
    """
    last, shape = num_classes - 1, tuple(y.shape[1:])
    one_hot = {(*target_shape, num_classes)}
    if target_shape == (1,):
        one_hot.add((num_classes,))
    if shape in one_hot:
        raise ValueError(
            f"y: has shape {with_rows(shape)}, one number per class; give labels 0..{last} of "
            f"shape {with_rows(target_shape)}: y.argmax(-1) where y is one-hot"
        )
    if y.dtype == torch.bool and num_classes > 2:
        raise TypeError(f"y: expected labels 0..{last}, got two-valued torch.bool")
    labels = flatten_targets(y, target_shape, dtype, allow_missing=True)
    valid = (labels >= 0) & (labels <= last) & (labels == labels.round())
    check_values(labels, valid, f"class labels 0..{last}, whole numbers")
    return labels


def split_missing(y: Tensor, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Targets with NaN replaced, and where they were observed.

    Replaced before any arithmetic: a NaN that is only masked afterwards still reaches gradients.
    """
    missing = y.isnan()
    return torch.where(missing, fill, y), ~missing


def with_rows(shape: tuple[int, ...]) -> str:
    """A datum's shape as the shape of N data."""
    return f"(N, {', '.join(map(str, shape))})" if shape else "(N,)"


def check_values(
    y: Tensor, valid: Tensor, expected: str, name: str = "y", *, missing: Tensor | None = None
) -> None:
    """Raise, naming the first offender, unless every observed target is valid.

    Parameters
    ----------
    y
        Targets (N x ...).
    valid
        Boolean, of y's shape.
    expected
        What valid targets are, e.g. "counts 0, 1, 2, ...".
    name
        What to call the targets in errors.
    missing
        Where nothing was observed, of y's shape; where y is NaN by default.
    """
    bad = ~(valid | (y.isnan() if missing is None else missing))
    if bool(bad.any()):
        row = int(bad.reshape(len(bad), -1).any(1).nonzero()[0])
        value = y[row][bad[row]].reshape(-1)[0].item()
        raise ValueError(
            f"{name}: expected {expected}, got {value:g} in row {row} "
            f"({int(bad.sum())} such values)"
        )
