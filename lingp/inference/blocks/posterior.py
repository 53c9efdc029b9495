"""What blocks of rows tell of a posterior: an estimate of log det(I + Φ Φᵀ), and nothing else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor

from lingp.inference.blocks.pieces import Piece
from lingp.inference.function_space import FunctionSpace
from lingp.inference.posterior import Posterior
from lingp.inference.prior_values import PriorValues
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_space import WeightSpace
from lingp.likelihoods import CurvatureRoot
from lingp.linalg.first_order import first_order
from lingp.linearization import Factors
from lingp.priors import Prior

if TYPE_CHECKING:
    from lingp.inference.blocks.method import BoundBlocks


class BlocksPosterior(Posterior):
    """An estimate of log det(I + Φ Φᵀ) with its derivatives, from blocks of rows.

    Parameters
    ----------
    training, prior, root
        As every posterior has them.
    method
        With the blocks.
    """

    def __init__(
        self, training: TrainingSet, prior: Prior, root: CurvatureRoot, method: BoundBlocks
    ) -> None:
        super().__init__(training, prior, root)
        self._method = method
        self._each: Tensor | None = None

    def log_determinant(self) -> Tensor:
        inputs = (self.variances, *self.root.tensors())
        if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            return cast(Tensor, _Average.apply(self, *inputs))
        return self.estimate(*inputs, gradients=False)[0]

    def log_determinant_error(self) -> float:
        """Over the choice of blocks of this partition; NaN where one block of several is drawn."""
        if self._each is None:
            with torch.no_grad():
                self.log_determinant()
        each, method = cast(Tensor, self._each), self._method
        if len(each) == method.total:
            return 0.0
        if len(each) == 1:
            return math.nan
        share = 1 - len(each) / method.total  # of the blocks that were not looked at
        return float(each.std()) * math.sqrt(share / len(each))

    def estimate(
        self, variances: Tensor, *tensors: Tensor, gradients: bool
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The mean over blocks, and its derivatives in variances and R, one block at a time."""
        method = self._method
        detached = self.root.with_tensors(*(t.detach() for t in tensors))
        method.find_weight(self._values(variances.detach()), detached)
        leaves = [
            t.detach().requires_grad_(gradients and t.requires_grad) for t in (variances, *tensors)
        ]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        totals, values = [torch.zeros_like(leaf) for leaf in wanted], []
        for index in range(len(method.rows)):
            with torch.set_grad_enabled(gradients):
                prior = self._values(leaves[0])
                root = self.root.with_tensors(*leaves[1:])
                value = method.log_determinant(index, prior, root)
            values.append(value.detach())
            if wanted:
                found = torch.autograd.grad(value, wanted)
                totals = [t + g / len(method.rows) for t, g in zip(totals, found, strict=True)]
        self._each = torch.stack(values)
        by_input = iter(totals)
        return self._each.mean(), [next(by_input) if t.requires_grad else None for t in leaves]

    def _values(self, variances: Tensor) -> Prior:
        return cast(Prior, PriorValues(variances, self.isotropic, self.groups))

    def solve(self, z: Tensor) -> Tensor:
        _refuse('a posterior mean; use mean="network"')

    def precision_solve(self, b: Tensor) -> Tensor:
        _refuse('a posterior mean; use mean="network"')

    def covariance(self, factors: Factors) -> Tensor:
        _refuse("covariances")

    def marginal_covariance(self, factors: Factors) -> Tensor:
        _refuse("covariances")

    def training_covariance(self) -> Tensor:
        _refuse("covariances")

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        _refuse("samples")

    def bytes_per_row(self) -> int:
        _refuse("covariances")


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


class _Average(torch.autograd.Function):
    """The estimate; derivatives are computed along with it, so that one block's graph is alive."""

    @staticmethod
    def forward(
        ctx: Any, posterior: BlocksPosterior, variances: Tensor, *tensors: Tensor
    ) -> Tensor:
        value, ctx.gradients = posterior.estimate(variances, *tensors, gradients=True)
        ctx.save_for_backward(variances, *tensors)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        def scaled() -> list[Tensor | None]:
            return [None if g is None else grad * g for g in ctx.gradients]

        return None, *first_order(scaled, grad, *ctx.saved_tensors)


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f"inference: Blocks(...) estimates the evidence and gives no {what}; to predict, make "
        'LinearizedGP(net, likelihood, prior=prior, inference="auto")'
    )
