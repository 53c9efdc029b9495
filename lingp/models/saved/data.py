"""Training data on disk: inputs, targets as they were given and as they were checked, weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lingp.inference import TrainingSet
from lingp.linearization import Factors, LinearizedNetwork
from lingp.linearization.inputs import Inputs, num_rows
from lingp.models.fitting import FittedData
from lingp.runtime.plain import from_plain, own, to_plain
from lingp.saving.errors import SavedFileError

_LARGEST_SHARE = 1e-2  # of the largest output: more than other machines and precisions make of it


@torch.no_grad()
def data_to_plain(data: FittedData) -> dict[str, Any]:
    """All of the data, and how they are kept in memory."""
    training = data.training
    plain: dict[str, Any] = {
        "inputs": [to_plain(x) for x in training.inputs],
        "outputs": own(training.outputs),
        "targets": own(training.targets),
        "weights": to_plain(training.weights),
        "given": [own(y) for y in data.given],
        "sample_weights": to_plain(data.sample_weights),
        "class_weight": to_plain(data.class_weight),
        "missing": data.missing,
        "memory": data.memory,
        "factors_kept": training.factors_kept,
        "factors": None,
        "factor_bytes": training.factor_bytes,
        "keep_bytes": training.keep_bytes,
        "chunk_bytes": training.chunk_bytes,
        "progress": training.progress,
    }
    if training.factors_kept and not _made_again(training):
        plain["factors"] = to_plain(training.factors())
    return plain


@torch.no_grad()
def data_from_plain(plain: dict[str, Any], data: FittedData) -> None:
    """Put the data of a file into `data`, which has none."""
    linearized = data.linearized
    inputs = [from_plain(x) for x in plain["inputs"]]
    _check_outputs(linearized, inputs[0], plain["outputs"])
    factors = None
    if plain["factors"] is not None:
        factors = from_plain(plain["factors"])
    elif plain["factors_kept"]:
        factors = _factors(linearized, inputs)
    training = TrainingSet(
        linearized,
        inputs,
        plain["outputs"],
        plain["targets"],
        None if factors is None else [factors],
        weights=plain["weights"],
        factor_bytes=plain["factor_bytes"],
        keep_bytes=plain["keep_bytes"],
        chunk_bytes=plain["chunk_bytes"],
        progress=plain["progress"],
    )
    data.restore(training, plain["given"], plain["sample_weights"])


def _check_outputs(linearized: LinearizedNetwork, x: Inputs, outputs: Tensor) -> None:
    """Raise if the network computes something else: its code may have changed, not its modules."""
    found, expected = linearized(x), outputs[: num_rows(x)]
    size = float(expected.abs().max())
    if found.shape != expected.shape or not torch.allclose(
        found, expected, rtol=0, atol=_LARGEST_SHARE * size, equal_nan=True
    ):
        raise SavedFileError(
            "net: has the modules and weights of the network in the file, but its outputs at the "
            "training data are others: its forward() has changed, or what it uses besides weights"
        )


def _factors(linearized: LinearizedNetwork, inputs: list[Any]) -> Factors:
    """The factors of all batches, as `TrainingSet.collect` makes them."""
    return Factors.cat([linearized.factors(x)[1] for x in inputs])


def _made_again(training: TrainingSet) -> bool:
    """Whether the kept factors are what the inputs give, to the last bit.

    They aren't where rows were taken away: the rest was computed in other batches. One batch at a
    time, so that no memory is taken for all of them.
    """
    start = 0
    for x in training.inputs:
        rows = slice(start, start + num_rows(x))
        if not _equal(training.factors().rows(rows), training.linearized.factors(x)[1]):
            return False
        start = rows.stop
    return True


def _equal(a: Factors, b: Factors) -> bool:
    if [type(block) for block in a.blocks] != [type(block) for block in b.blocks]:
        return False
    return all(
        s.shape == t.shape and torch.equal(s, t)
        for s, t in zip(a.tensors(), b.tensors(), strict=True)
    )
