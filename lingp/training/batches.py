"""Training data as users have them, made into batches without end."""

from __future__ import annotations

from operator import itemgetter

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lingp.inference.batches import Batch
from lingp.linearization.inputs import Inputs, input_tensors, map_inputs
from lingp.models.intake import as_batches
from lingp.training.array_batches import BATCH_SIZE, ArrayBatches
from lingp.training.loader_batches import LoaderBatches
from lingp.training.model import ModelInTraining

EndlessBatches = ArrayBatches | LoaderBatches


def endless_batches(
    model: ModelInTraining, batch_size: int | None, generator: torch.Generator
) -> EndlessBatches:
    """Batches of a model's training data, which may be arrays, or what gives batches.

    Parameters
    ----------
    model
        The network that runs on them, the likelihood that checks their targets, and the data.
    batch_size
        Rows of a step, of arrays and datasets.
    generator
        Draws the order of rows.
    """
    network, likelihood, dtype = model.untrained, model.likelihood, model.dtype
    X, y, sample_weight, missing = (
        model.data[name] for name in ("X", "y", "sample_weight", "missing")
    )
    if missing not in ("error", "nan"):
        raise ValueError(f'missing: expected "error" or "nan", got {missing!r}')
    if missing == "nan" and not likelihood.allows_missing:
        raise ValueError(
            f'missing: "nan", but {type(likelihood).__name__} can\'t have missing targets; leave '
            "out rows without a target"
        )

    def to(t: Tensor) -> Tensor:
        return t.to(network.device, dtype if t.is_floating_point() else None)

    def place(inputs: Inputs, targets: Tensor, weights: Tensor | None) -> Batch:
        inputs = map_inputs(to, inputs)
        if network.output_shape is None:
            network(map_inputs(itemgetter(slice(0, 1)), inputs))
        assert network.output_shape is not None
        checked = likelihood.check_targets(targets, tuple(network.output_shape), dtype)
        return inputs, to(checked), None if weights is None else to(weights)

    if y is None and isinstance(X, tuple) and len(X) == 2 and not isinstance(X[1], tuple):
        X, y = X
    if y is not None:
        given = as_batches(X, y, sample_weight, missing=missing == "nan")
        return ArrayBatches(*_joined([place(*batch) for batch in given]), batch_size, generator)
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
    return LoaderBatches(X, missing == "nan", place)


def _joined(batches: list[Batch]) -> Batch:
    """One batch of all rows."""
    inputs, targets, weights = zip(*batches, strict=True)
    tensors = zip(*map(input_tensors, inputs), strict=True)
    whole = iter([torch.cat(parts) for parts in tensors])
    return (
        map_inputs(lambda _: next(whole), inputs[0]),
        torch.cat(targets),
        None if weights[0] is None else torch.cat(weights),
    )
