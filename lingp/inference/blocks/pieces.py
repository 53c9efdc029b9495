"""Blocks of training data: some rows, with all outputs or one output at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot, DiagonalRoot, UniformRoot
from lingp.linearization.inputs import Inputs, input_tensors, map_inputs, num_rows, signature
from lingp.operators.combined import combine_outputs

Piece = tuple[TrainingSet, CurvatureRoot]
"""Rows of J and of R: Φ_b = Rᵀ J Σ0^{1/2}."""


def rows_of(training: TrainingSet, rows: Tensor) -> TrainingSet:
    """Some of the data, in as few batches as the largest batch of all allows.

    Parameters
    ----------
    training
        All data.
    rows
        Row numbers, ascending, (m,).
    """
    chosen = training.subset(rows)
    chosen.inputs = _merged(chosen.inputs, max(num_rows(x) for x in training.inputs))
    chosen.progress = False
    return chosen


def single_outputs(training: TrainingSet, root: CurvatureRoot) -> list[Piece]:
    """The data cut into K pieces of one output each: the k-th has the k-th column of each R_n.

    Parameters
    ----------
    training
        m rows.
    root
        R at these rows.

    Raises
    ------
    ValueError
        Where derivatives are wanted in hyperparameters of a curvature that mixes outputs.
    """
    return [(_combination(training, weights), column) for weights, column in _columns(root)]


def _columns(root: CurvatureRoot) -> list[tuple[Tensor, CurvatureRoot]]:
    """Each column of R as a combination of outputs (m x C), and what multiplies that."""
    if isinstance(root, UniformRoot | DiagonalRoot):
        values = root.apply(root.tensors()[0].new_ones(root.num_data, root.rank, 1)).squeeze(-1)
        picks = torch.eye(root.rank, dtype=values.dtype, device=values.device)
        return [
            (pick.expand(root.num_data, -1), DiagonalRoot(values[:, k : k + 1]))
            for k, pick in enumerate(picks)
        ]
    written = root.dense()  # (m, C, K)
    if torch.is_grad_enabled() and written.requires_grad:
        raise ValueError(
            'outputs: "separate" has no derivatives in hyperparameters of a likelihood whose '
            'curvature mixes outputs (a temperature, correlated noise); use outputs="joint", or '
            "switch off their requires_grad"
        )
    one = UniformRoot(written.new_ones(()), root.num_data, 1)
    return [(column, one) for column in written.unbind(-1)]


def _combination(training: TrainingSet, weights: Tensor) -> TrainingSet:
    """The rows with one output, which is a combination (m x C) of all outputs."""
    return TrainingSet(
        training.linearized,
        training.inputs,
        training.outputs[:, :1],
        training.targets,
        [combine_outputs(training.factors(), weights.unsqueeze(-1))],
        chunk_bytes=training.chunk_bytes,
        progress=False,
    )


def _merged(batches: list[Inputs], most: int) -> list[Inputs]:
    """Neighbouring batches of the same kind put together, to at most so many rows."""
    merged: list[Inputs] = []
    for x in batches:
        last = merged[-1] if merged else None
        if last is None or signature(last) != signature(x) or num_rows(last) + num_rows(x) > most:
            merged.append(x)
            continue
        pairs = zip(input_tensors(last), input_tensors(x), strict=True)
        tensors = iter([torch.cat(pair) for pair in pairs])
        merged[-1] = map_inputs(lambda _, ts=tensors: next(ts), x)  # type: ignore[misc]
    return merged
