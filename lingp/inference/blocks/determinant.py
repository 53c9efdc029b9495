"""Blocks of rows that are drawn, and their estimate of log det(I + Φ Φᵀ) with its derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NoReturn, cast

import torch
from torch import Tensor

from lingp.inference.blocks.block import Block, log_determinants, rates, rows_of, single_outputs
from lingp.inference.posterior import OccamFactor, Posterior
from lingp.inference.prior_values import PriorValues
from lingp.inference.protocol import InferenceMethod
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot
from lingp.linalg.first_order import first_order
from lingp.priors import Prior

Estimate = Literal["between", "lower", "upper"]
Outputs = Literal["joint", "separate"]


class BoundBlocks(InferenceMethod):
    """Inference by blocks of rows that are drawn: it has an Occam factor and no posterior.

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

    title = "blocks"

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

    def __call__(self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot) -> Posterior:
        _refuse_to_predict()

    def occam_factor(
        self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot
    ) -> BlocksDeterminant:
        return BlocksDeterminant(training, prior, root, self)

    def __str__(self) -> str:
        sizes = " or ".join(str(size) for size in sorted({len(r) for r in self.rows}))
        what = {"lower": "lower bound", "upper": "upper bound"}.get(self.estimate, "an estimate")
        apart = "" if self.outputs == "joint" else ", one output at a time"
        return (
            f"{what} of the evidence from {len(self.rows)} of {self.total} blocks of {sizes} rows"
            f"{apart}"
        )

    def log_determinant(self, index: int, prior: PriorValues, root: CurvatureRoot) -> Tensor:
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

    def find_weight(self, prior: PriorValues, root: CurvatureRoot) -> None:
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


class BlocksDeterminant(OccamFactor):
    """An estimate of log det(I + Φ Φᵀ) with its derivatives, from blocks of rows.

    Parameters
    ----------
    training, prior, root
        The model, as for every posterior.
    blocks
        The rows.
    """

    def __init__(
        self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot, blocks: BoundBlocks
    ) -> None:
        super().__init__(training, prior, root)
        self._blocks = blocks
        self._each: Tensor | None = None

    def log_determinant(self) -> Tensor:
        inputs = (self.variances, *self.root.tensors())
        if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            return cast(Tensor, _Average.apply(self, *inputs))
        return self.estimate(*inputs, gradients=False)[0]

    def log_determinant_error(self) -> float:
        """The error by the choice of blocks; NaN where one block of several is drawn."""
        if self._each is None:
            with torch.no_grad():
                self.log_determinant()
        each, blocks = cast(Tensor, self._each), self._blocks
        if len(each) == blocks.total:
            return 0.0
        if len(each) == 1:
            return math.nan
        share = 1 - len(each) / blocks.total  # of the blocks that were not looked at
        return float(each.std()) * math.sqrt(share / len(each))

    @torch.no_grad()
    def effective_parameters(self) -> Tensor:
        variances = self.variances.detach().requires_grad_()
        tensors = [t.detach() for t in self.root.tensors()]
        _, (slopes, *_) = self.estimate(variances, *tensors, gradients=True)
        assert slopes is not None
        return slopes @ self.variances.detach()

    def to_predict_with(self) -> NoReturn:
        _refuse_to_predict()

    def estimate(
        self, variances: Tensor, *tensors: Tensor, gradients: bool
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The mean over blocks, and its derivatives in variances and R, one block at a time."""
        blocks = self._blocks
        detached = self.root.with_tensors(*(t.detach() for t in tensors))
        blocks.find_weight(self._values(variances.detach()), detached)
        leaves = [
            t.detach().requires_grad_(gradients and t.requires_grad) for t in (variances, *tensors)
        ]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        totals, values = [torch.zeros_like(leaf) for leaf in wanted], []
        for index in range(len(blocks.rows)):
            with torch.set_grad_enabled(gradients):
                prior = self._values(leaves[0])
                root = self.root.with_tensors(*leaves[1:])
                value = blocks.log_determinant(index, prior, root)
            values.append(value.detach())
            if wanted:
                found = torch.autograd.grad(value, wanted)
                totals = [t + g / len(blocks.rows) for t, g in zip(totals, found, strict=True)]
        self._each = torch.stack(values)
        by_input = iter(totals)
        return self._each.mean(), [next(by_input) if t.requires_grad else None for t in leaves]

    def _values(self, variances: Tensor) -> Prior:
        return cast(Prior, PriorValues(variances, self.isotropic, self.groups))


class _Average(torch.autograd.Function):
    """The estimate; derivatives are computed along with it, so that one block's graph is alive."""

    @staticmethod
    def forward(
        ctx: Any, posterior: BlocksDeterminant, variances: Tensor, *tensors: Tensor
    ) -> Tensor:
        value, ctx.gradients = posterior.estimate(variances, *tensors, gradients=True)
        ctx.save_for_backward(variances, *tensors)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        def scaled() -> list[Tensor | None]:
            return [None if g is None else grad * g for g in ctx.gradients]

        return None, *first_order(scaled, grad, *ctx.saved_tensors)


def _refuse_to_predict() -> NoReturn:
    """Raise: blocks have no posterior."""
    raise ValueError(
        "inference: Blocks(...) estimates the evidence and gives no posterior, neither to predict "
        'with nor for a refitted mean; use mean="network", and to predict, make '
        'LinearizedGP(net, likelihood, prior=prior, inference="auto")'
    )
