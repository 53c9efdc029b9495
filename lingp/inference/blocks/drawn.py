"""Blocks of rows that are drawn from the data, and what each of them says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NoReturn

import torch
from torch import Tensor

from lingp.inference.blocks.block import Block, rows_of, single_outputs
from lingp.inference.function_space import FunctionSpace
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_space import WeightSpace
from lingp.likelihoods import CurvatureRoot
from lingp.priors import Prior

Estimate = Literal["between", "lower", "upper"]
Outputs = Literal["joint", "separate"]


def refuse_to_predict() -> NoReturn:
    """Raise: blocks have no posterior."""
    raise ValueError(
        "inference: Blocks(...) estimates the evidence and gives no posterior, neither to predict "
        'with nor for a refitted mean; use mean="network", and to predict, make '
        'LinearizedGP(net, likelihood, prior=prior, inference="auto")'
    )


class DrawnBlocks:
    """Blocks of rows that are drawn.

    Parameters
    ----------
    training
        The training data.
    rows
        Row numbers of each block, ascending.
    total
        The number of blocks that the rows make in all.
    estimate, outputs
        See `Blocks`.
    keep_bytes
        Memory that all drawn blocks may take to be kept.

    Attributes
    ----------
    weight
        The weight of the lower bound in an estimate "between" the two; None until it is found.
    """

    def __init__(
        self,
        training: TrainingSet,
        rows: Sequence[Tensor],
        total: int,
        estimate: Estimate,
        outputs: Outputs,
        keep_bytes: float = math.inf,
    ) -> None:
        self.rows = list(rows)
        self.total = total
        self.estimate: Estimate = estimate
        self.outputs: Outputs = outputs
        self.weight: float | None = {"lower": 1.0, "upper": 0.0}.get(estimate)
        self._training = training
        side = max(map(len, self.rows)) * training.num_outputs  # of kernels that are kept
        drawn = sum(map(len, self.rows))
        kept = len(self.rows) * side**2 * training.outputs.element_size()
        kept += training.factor_bytes * drawn // training.num_data
        self._kept = [rows_of(training, r) for r in self.rows] if kept <= keep_bytes else None

    def log_determinant(self, index: int, prior: Prior, root: CurvatureRoot) -> Tensor:
        """What the i-th drawn block estimates of log det(I + Φ Φᵀ), 0-d, differentiable.

        Parameters
        ----------
        index
            i.
        prior
            Gives variances.
        root
            R at all data.
        """
        blocks = self._blocks(index, root)
        total = float(self.total * len(blocks))
        assert self.weight is not None
        # weights of log determinants, by scale
        wanted = {1.0: self.weight * total, total: 1 - self.weight} if total > 1 else {1.0: 1.0}
        wanted = {scale: weight for scale, weight in wanted.items() if weight}
        each = []
        for block in blocks:
            found = log_determinants(block, prior, list(wanted))
            each += [w * value for w, value in zip(wanted.values(), found, strict=True)]
        return torch.stack(each).sum() / len(blocks)

    def find_weight(self, prior: Prior, root: CurvatureRoot) -> None:
        """Find the `weight` at these hyperparameters, unless there is one.

        Parameters
        ----------
        prior
            Gives variances.
        root
            R at all data.
        """
        if self.weight is not None:
            return
        falling, rising = 0.0, 0.0
        for index in range(len(self.rows)):
            blocks = self._blocks(index, root)
            for block in blocks:
                fall, rise = rates(block, prior, float(self.total * len(blocks)))
                falling, rising = falling + fall, rising + rise
        both = falling + rising
        self.weight = rising / both if both > 0 else 0.5

    def _blocks(self, index: int, root: CurvatureRoot) -> list[Block]:
        """The i-th drawn block, or what it falls apart into."""
        rows = self.rows[index]
        block = rows_of(self._training, rows) if self._kept is None else self._kept[index]
        here = root.rows(rows)
        if self.outputs == "joint" or here.rank == 1:
            return [(block, here)]
        return single_outputs(block, here)


def log_determinants(block: Block, prior: Prior, scales: list[float]) -> list[Tensor]:
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
def rates(block: Block, prior: Prior, total: float) -> tuple[float, float]:
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
        self, training: TrainingSet, prior: Prior, root: CurvatureRoot, kept: list[Tensor]
    ) -> None:
        self.kept = kept
        super().__init__(training, prior, root)

    def _kernel(self) -> Tensor:
        if not self.kept:
            self.kept.append(super()._kernel())
        return self.kept[0]
