"""An estimate of log det(I + Φ Φᵀ) from blocks of rows, with its derivatives."""

from __future__ import annotations

import math
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from lingp.inference.blocks.drawn import DrawnBlocks, refuse_to_predict
from lingp.inference.posterior import OccamFactor
from lingp.inference.prior_values import PriorValues
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot
from lingp.linalg.first_order import first_order
from lingp.priors import Prior


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
        self, training: TrainingSet, prior: Prior, root: CurvatureRoot, blocks: DrawnBlocks
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
        refuse_to_predict()

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
