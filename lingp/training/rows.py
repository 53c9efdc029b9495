"""Training data as users have them, made into batches without end."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lingp.likelihoods import Likelihood
from lingp.linearization import LinearizedNetwork
from lingp.linearization.inputs import Inputs, input_tensors, map_inputs
from lingp.models.fitting import Missing
from lingp.models.intake import as_batches
from lingp.training.array_rows import BATCH_SIZE, ArrayRows
from lingp.training.batches import Batch, Rows
from lingp.training.loader_rows import LoaderRows


def training_rows(
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    missing: Missing,
    network: LinearizedNetwork,
    dtype: torch.dtype,
    likelihood: Likelihood,
    batch_size: int | None,
    generator: torch.Generator,
) -> Rows:
    """Batches from arrays, or from what gives batches.

    Parameters
    ----------
    X, y, sample_weight, missing
        As `LinearizedGP.fit` takes them.
    network
        Tells the shape of the outputs.
    dtype
        Of inputs and targets.
    likelihood
        Checks the targets.
    batch_size
        Of arrays and datasets.
    generator
        Draws the order of rows.
    """
    if missing not in ("error", "nan"):
        raise ValueError(f'missing: expected "error" or "nan", got {missing!r}')
    if missing == "nan" and not likelihood.allows_missing:
        raise ValueError(
            f'missing: "nan", but {type(likelihood).__name__} can\'t have missing targets; leave '
            "out rows without a target"
        )
    device = network.device

    def to(t: Tensor) -> Tensor:
        return t.to(device, dtype if t.is_floating_point() else None)

    def place(inputs: Inputs, targets: Tensor, weights: Tensor | None) -> Batch:
        inputs = map_inputs(to, inputs)
        if network.output_shape is None:
            network(map_inputs(itemgetter(slice(0, 1)), inputs))
        assert network.output_shape is not None
        checked = likelihood.check_targets(targets, tuple(network.output_shape), dtype).to(device)
        return Batch(inputs, checked, None if weights is None else to(weights))

    if y is None and isinstance(X, tuple) and len(X) == 2 and not isinstance(X[1], tuple):
        X, y = X
    if y is not None:
        batches = list(as_batches(X, y, sample_weight, missing=missing == "nan"))
        return ArrayRows(_joined([place(*batch) for batch in batches]), batch_size, generator)
    if batch_size is not None and not isinstance(X, Dataset):
        raise TypeError(
            f"batch_size: goes with arrays and datasets; {type(X).__name__} has batches of its own"
        )
    if sample_weight is not None:
        raise TypeError(
            f"sample_weight: goes with arrays, but X is {type(X).__name__}; let it give (inputs, "
            "targets, weights)"
        )
    if isinstance(X, Dataset):
        shuffle = not isinstance(X, IterableDataset)
        X = DataLoader(X, batch_size or BATCH_SIZE, shuffle=shuffle)
    return LoaderRows(X, missing == "nan", place)


def _joined(batches: list[Batch]) -> Batch:
    """All rows in one."""
    first = batches[0]
    tensors = [input_tensors(batch.inputs) for batch in batches]
    whole = iter([torch.cat(parts) for parts in zip(*tensors, strict=True)])
    weights = [batch.weights for batch in batches if batch.weights is not None]
    return Batch(
        map_inputs(lambda _: next(whole), first.inputs),
        torch.cat([batch.targets for batch in batches]),
        torch.cat(weights) if weights else None,
    )
