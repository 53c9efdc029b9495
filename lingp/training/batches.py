"""Training data as users have them, made into batches without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lingp.linearization.inputs import Inputs, input_tensors, map_inputs, signature
from lingp.models.intake import as_batches
from lingp.operators.batches import Batch
from lingp.training.endless import EndlessBatches
from lingp.training.fingerprint import digest
from lingp.training.model import ModelInTraining

FULL_BATCH, BATCH_SIZE = 2048, 256  # all rows up to so many, else batches of this size


def endless_batches(
    model: ModelInTraining, batch_size: int | None, generator: torch.Generator
) -> EndlessBatches:
    """Batches of a model's training data, which may be arrays, or what gives batches.

    Parameters
    ----------
    model
        The network that runs on them, the likelihood that checks their targets, and the data.
    batch_size
        Rows of a step, of arrays and datasets: by default all, or 256 where there are more than
        2048. The last batches are made as large as the others, or one row less.
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
        return _of_arrays(_joined([place(*batch) for batch in given]), batch_size, generator)
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
    return _of_loader(X, lambda: (place(*b) for b in as_batches(X, missing=missing == "nan")))


def _of_arrays(rows: Batch, batch_size: int | None, generator: torch.Generator) -> EndlessBatches:
    """Batches of rows in an order that is drawn for every epoch."""
    inputs, targets, weights = rows
    size = batch_size or (len(targets) if len(targets) <= FULL_BATCH else BATCH_SIZE)
    number = -(-len(targets) // size)

    def epoch() -> Iterator[Batch]:
        if number == 1:
            yield rows
            return
        order = torch.randperm(len(targets), generator=generator, device=generator.device)
        # of nearly equal size: BatchNorm can't do with a single row that is left over
        for some in order.to(targets.device).tensor_split(number):
            own = None if weights is None else weights[some]
            yield map_inputs(itemgetter(some), inputs), targets[some], own

    def fingerprint() -> str:
        return digest(inputs, targets, *([] if weights is None else [weights]))

    return EndlessBatches(epoch, {"order": generator}, len(targets), number, fingerprint)


def _of_loader(data: Any, epoch: Callable[[], Iterator[Batch]]) -> EndlessBatches:
    """Batches of a loader, or of any iterable of batches, which is iterated anew every epoch.

    One epoch is gone through to count the rows.
    """
    if isinstance(data, Iterator):
        raise TypeError(
            f"X: {type(data).__name__} can be gone through only once, but training takes many "
            "epochs; give a DataLoader, a list of batches or arrays"
        )
    sizes, kind = [], ""
    for inputs, targets, _ in epoch():
        kind = kind or repr((signature(inputs), tuple(targets.shape[1:])))
        sizes.append(len(targets))
    if not sizes:
        raise ValueError("X: gave no batches; there is nothing to train on")
    owners = {"loader": data, "sampler": getattr(data, "sampler", None)}
    found = {name: getattr(owner, "generator", None) for name, owner in owners.items()}
    return EndlessBatches(
        epoch,
        {name: g for name, g in found.items() if isinstance(g, torch.Generator)},
        sum(sizes),
        len(sizes),
        lambda: f"{kind} {sum(sizes)}",
        # workers that stay serve one epoch at a time
        begins_anew=getattr(data, "persistent_workers", False),
    )


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
