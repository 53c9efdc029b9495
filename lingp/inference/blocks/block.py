"""A block of training data, and what it says of log det(I + Φ Φᵀ).

A block is some rows, with all outputs or one output at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lingp.inference.function_space import FunctionSpace
from lingp.inference.prior_values import PriorValues
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_space import WeightSpace
from lingp.likelihoods import CurvatureRoot, DiagonalRoot, UniformRoot
from lingp.linearization.inputs import Inputs, joined_inputs, num_rows, signature
from lingp.operators.combined import combine_outputs

Block = tuple[TrainingSet, CurvatureRoot]
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


def single_outputs(training: TrainingSet, root: CurvatureRoot) -> list[Block]:
    """The data cut into K blocks of one output each: the k-th has the k-th column of each R_n.

    Parameters
    ----------
    training
        m rows.
    root
        R at these rows.

    Raises
    ------
    ValueError
        If derivatives are wanted in hyperparameters of a curvature that mixes outputs.
    """
    return [(_combination(training, weights), column) for weights, column in _columns(root)]


def log_determinants(block: Block, prior: PriorValues, scales: list[float]) -> list[Tensor]:
    """log det(I + s Φ_b Φ_bᵀ) for each s, in the smaller space.

    Parameters
    ----------
    block
        J and R.
    prior
        Gives variances.
    scales
        s.
    """
    training, root = block
    roots = [root.scaled(training.outputs.new_tensor(math.sqrt(s))) for s in scales]
    if training.num_data * root.rank > training.num_parameters:
        return [WeightSpace(training, prior, r).log_determinant() for r in roots]
    kept: list[Tensor] = []
    return [_SharedKernel(training, prior, r, kept).log_determinant() for r in roots]


@torch.no_grad()
def rates(block: Block, prior: PriorValues, total: float) -> tuple[float, float]:
    """The rates at which blocks close in on log det(I + Φ Φᵀ), from above and from below.

    A block is compared with its halves.

    Parameters
    ----------
    block
        J and R.
    prior
        Gives variances.
    total
        n, how many such blocks there are.

    Returns
    -------
    The fall of n log det(I + Φ_b Φ_bᵀ), and the rise of log det(I + n Φ_b Φ_bᵀ), both >= 0.
    """
    training, root = block
    above, below = map(float, log_determinants(block, prior, [1.0, total]))
    order = torch.randperm(training.num_data, generator=torch.Generator().manual_seed(0))
    fall, rise = -total * above, below
    for half in order.chunk(2):
        rows = half.sort().values.to(training.outputs.device)
        smaller = training.subset(rows), root.rows(rows)
        above, below = map(float, log_determinants(smaller, prior, [1.0, 2 * total]))
        fall, rise = fall + total * above, rise - 0.5 * below
    return max(0.0, fall), max(0.0, rise)


class _SharedKernel(FunctionSpace):
    """A function space whose kernel is made once for several roots."""

    def __init__(
        self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot, kept: list[Tensor]
    ) -> None:
        self.kept = kept
        super().__init__(training, prior, root)

    def _kernel(self) -> Tensor:
        if not self.kept:
            self.kept.append(super()._kernel())
        return self.kept[0]


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
        merged[-1] = joined_inputs([last, x])
    return merged
