"""Blocks of rows that are drawn from the data, and what each of them says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NoReturn

import torch
from torch import Tensor

from lingp.inference.blocks.pieces import Piece, rows_of, single_outputs
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
        Of the lower bound in an estimate "between" the two; None until it is found.
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
        pieces = self._pieces(index, root)
        total = float(self.total * len(pieces))
        assert self.weight is not None
        # weights of log determinants, by scale
        wanted = {1.0: self.weight * total, total: 1 - self.weight} if total > 1 else {1.0: 1.0}
        wanted = {scale: weight for scale, weight in wanted.items() if weight}
        each = []
        for piece in pieces:
            found, _ = log_determinants(piece, prior, list(wanted))
            each += [w * value for w, value in zip(wanted.values(), found, strict=True)]
        return torch.stack(each).sum() / len(pieces)

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
        falls, rises = [], []
        for index in range(len(self.rows)):
            pieces = self._pieces(index, root)
            for piece in pieces:
                fall, rise = rates(piece, prior, float(self.total * len(pieces)))
                falls.append(fall)
                rises.append(rise)
        falling, rising = float(torch.stack(falls).sum()), float(torch.stack(rises).sum())
        both = falling + rising
        self.weight = rising / both if both > 0 else 0.5

    def _pieces(self, index: int, root: CurvatureRoot) -> list[Piece]:
        """The i-th drawn block, or what it falls apart into."""
        rows = self.rows[index]
        block = rows_of(self._training, rows) if self._kept is None else self._kept[index]
        here = root.rows(rows)
        if self.outputs == "joint" or here.rank == 1:
            return [(block, here)]
        return single_outputs(block, here)


def log_determinants(
    piece: Piece, prior: Prior, scales: list[float], kernel: Tensor | None = None
) -> tuple[list[Tensor], Tensor | None]:
    """log det(I + s Φ_b Φ_bᵀ) for each s, in the smaller space, and the kernel if that was made.

    Parameters
    ----------
    piece
        The block.
    prior
        Gives variances.
    scales
        s.
    kernel
        J Σ0 Jᵀ of the block, if it is known.
    """
    training, root = piece
    roots = [root.scaled(training.outputs.new_tensor(math.sqrt(s))) for s in scales]
    if training.num_data * root.rank > training.num_parameters:
        return [WeightSpace(training, prior, r).log_determinant() for r in roots], None
    found: list[Tensor] = []
    for r in roots:
        posterior = _SharedKernel(training, prior, r, kernel)
        kernel = posterior.kernel
        found.append(posterior.log_determinant())
    return found, kernel


@torch.no_grad()
def rates(piece: Piece, prior: Prior, total: float) -> tuple[Tensor, Tensor]:
    """How much closer to log det(I + Φ Φᵀ) a block is than its halves, from above and from below.

    Parameters
    ----------
    piece
        The block.
    prior
        Gives variances.
    total
        n, how many such blocks there are.

    Returns
    -------
    The fall of n log det(I + Φ_b Φ_bᵀ), and the rise of log det(I + n Φ_b Φ_bᵀ), both >= 0, 0-d.
    """
    training, root = piece
    (above, below), kernel = log_determinants(piece, prior, [1.0, total])
    order = torch.randperm(training.num_data, generator=torch.Generator().manual_seed(0))
    fall, rise = -total * above, below
    for half in order.chunk(2):
        rows = half.sort().values.to(training.outputs.device)
        own = None
        if kernel is not None:
            square = kernel.view((training.num_data, training.num_outputs) * 2)
            side = len(rows) * training.num_outputs
            own = square[rows][:, :, rows].reshape(side, side)
        smaller = training.subset(rows), root.rows(rows)
        (above, below), _ = log_determinants(smaller, prior, [1.0, 2 * total], own)
        fall, rise = fall + total * above, rise - 0.5 * below
    return fall.clamp(min=0), rise.clamp(min=0)


class _SharedKernel(FunctionSpace):
    """With a kernel that may be known already."""

    def __init__(
        self, training: TrainingSet, prior: Prior, root: CurvatureRoot, kernel: Tensor | None
    ) -> None:
        self.kernel = kernel
        super().__init__(training, prior, root)

    def _kernel(self) -> Tensor:
        if self.kernel is None:
            self.kernel = super()._kernel()
        return self.kernel
