"""The evidence of large data from blocks of rows: bounds, estimated without bias.

Cut the N rows into B blocks, Φ_b the rows of Φ of the b-th. The diagonal blocks of I + Φ Φᵀ are
I + Φ_b Φ_bᵀ, so by Fischer's inequality, and by the concavity of log det,

    (1/B) Σ_b log det(I + B Φ_b Φ_bᵀ)  <=  log det(I + Φ Φᵀ)  <=  Σ_b log det(I + Φ_b Φ_bᵀ)

The right side makes a lower bound of the evidence, the left side an upper bound; a few random
blocks estimate either without bias, and so its gradient (Immer, van der Ouderaa, van der Wilk,
Rätsch and Schölkopf, 2023, "Stochastic marginal likelihood gradients using neural tangent kernels",
whose bound is the lower one). With one output at a time, I + Φ_b Φ_bᵀ falls apart into blocks again
and the lower bound into a lower one still. Fit and weights' norm are those of all data.

The lower bound counts a direction that all blocks determine once for each of them: it is good where
there are more weights than the data determine (N·C < P), and too timid where there are many data
for few weights. The upper bound is the other way round: no more than m·C directions are seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, cast, get_args

import torch
from torch import Tensor

from lingp.inference.function_space import FunctionSpace
from lingp.inference.memory import format_bytes
from lingp.inference.posterior import Posterior
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_space import WeightSpace
from lingp.likelihoods import CurvatureRoot, DiagonalRoot, UniformRoot
from lingp.linearization import Factors
from lingp.linearization.inputs import Inputs, input_tensors, map_inputs, num_rows, signature
from lingp.operators.combined import combine_outputs
from lingp.operators.first_order import first_order
from lingp.priors import Prior

Bound = Literal["lower", "upper"]
Outputs = Literal["joint", "separate"]

_ROWS = 1000  # m·C of a block, where the user doesn't say
_FEWEST = 32  # rows of such a block
_COPIES = 6  # matrices of a block's size at the peak


@dataclass(frozen=True)
class Blocks:
    """Bounds of the evidence from random blocks of rows: for hyperparameters of large data.

    Blocks are drawn when a model is given data, and stay: the objective of one
    `hyperparameter_step` is a smooth function, that of the next has other blocks. There is no
    posterior to predict with.

    Attributes
    ----------
    size
        m, rows of a block; by default about 1000 / C, at least 32. Blocks of all rows are exact.
    num_blocks
        How many blocks are drawn of the N / m there are. Two or more tell the standard error.
    bound
        Of the evidence: "lower" or "upper", see `lingp.inference.blocks`.
    outputs
        "joint", or "separate" for one output at a time: a coarser lower bound at 1 / C² of the
        time and memory.
    generator
        Draws the blocks; by default one with the same seed for each `Blocks()`.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> X = torch.linspace(-1, 1, 200).unsqueeze(1)
    >>> low, high = (lingp.inference.Blocks(50, bound=b) for b in ("lower", "upper"))
    >>> values = [lingp.LinearizedGP(net, inference=b).fit(X, X.sin()).evidence().value
    ...           for b in (low, high)]
    >>> values[0] < values[1]
    True

    Raises
    ------
    ValueError
        For numbers out of range and options that don't go together.
    """

    size: int | None = None
    num_blocks: int = 4
    bound: Bound = "lower"
    outputs: Outputs = "joint"
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def __post_init__(self) -> None:
        for name, least in (("size", self.size), ("num_blocks", self.num_blocks)):
            if least is not None and least < 1:
                raise ValueError(f"{name}: got {least}; expected 1 or more")
        for name, options in (("bound", Bound), ("outputs", Outputs)):
            value = getattr(self, name)
            if value not in get_args(options):
                listed = " or ".join(f'"{option}"' for option in get_args(options))
                raise ValueError(f"{name}: expected {listed}, got {value!r}")
        if self.bound == "upper" and self.outputs == "separate":
            raise ValueError(
                'outputs: one output at a time lowers the evidence, so with bound="upper" there '
                'would be no bound; use outputs="joint"'
            )

    def bind(self, training: TrainingSet, prior: Prior, memory: float) -> BoundBlocks:
        """The method with blocks drawn from these data.

        Parameters
        ----------
        training
            The training data.
        prior
            A bound prior.
        memory
            Bytes that may be used.

        Raises
        ------
        MemoryError
            If a block doesn't fit in `memory` bytes.
        ValueError
            If data are spread over processes.
        """
        if not training.shards.alone:
            raise ValueError(
                "inference: Blocks(...) draws from the data of one process; with a process_group "
                'use "weight_space", Sparse(...) or Iterative(...)'
            )
        size = self.size or max(_FEWEST, _ROWS // training.num_outputs)
        size = min(size, training.num_data)
        self._check_memory(training, size, memory)
        total = -(-training.num_data // size)
        generator, device = self.generator, self.generator.device
        order = torch.randperm(training.num_data, generator=generator, device=device)
        # which of them: by chance, since the first ones may have a row more than the others
        chosen = torch.randperm(total, generator=generator, device=device)[: self.num_blocks]
        parts = order.tensor_split(total)
        rows = [parts[b].sort().values.to(training.outputs.device) for b in chosen.tolist()]
        return BoundBlocks(training, rows, total, self.bound, self.outputs, memory / 2)

    def _check_memory(self, training: TrainingSet, size: int, memory: float) -> None:
        """Raise unless the matrix and the factors of one block fit."""
        outputs = training.num_outputs if self.outputs == "joint" else 1
        side = min(size * outputs, training.num_parameters)
        needed = _COPIES * side**2 * training.outputs.element_size()
        needed += training.factor_bytes * size // training.num_data
        if needed > memory:
            raise MemoryError(
                f"size: a block of {size} rows with {training.num_outputs} outputs takes "
                f"{format_bytes(needed)}, more than the {format_bytes(memory)} of memory there is; "
                'choose a smaller size, outputs="separate", or raise memory_budget'
            )


class BoundBlocks:
    """Blocks of rows that are drawn.

    Parameters
    ----------
    training
        The training data.
    rows
        Row numbers of each block, ascending.
    total
        B, the number of blocks that the rows make in all.
    bound, outputs
        See `Blocks`.
    keep_bytes
        Memory that the factors of all drawn blocks may take to be kept.
    """

    def __init__(
        self,
        training: TrainingSet,
        rows: Sequence[Tensor],
        total: int,
        bound: Bound = "lower",
        outputs: Outputs = "joint",
        keep_bytes: float = math.inf,
    ) -> None:
        self.rows = list(rows)
        self.total = total
        self.bound = bound
        self.outputs = outputs
        drawn = sum(len(r) for r in self.rows)
        self.keeps = training.factor_bytes * drawn / training.num_data <= keep_bytes
        self.blocks = [_rows_of(training, r) for r in self.rows]

    def __call__(self, training: TrainingSet, prior: Prior, root: CurvatureRoot) -> BlocksPosterior:
        return BlocksPosterior(training, prior, root, self)

    def __str__(self) -> str:
        sizes = sorted({len(r) for r in self.rows})
        apart = "" if self.outputs == "joint" else ", one output at a time"
        return (
            f"{self.bound} bound of the evidence from {len(self.rows)} of {self.total} blocks of "
            f"{' or '.join(map(str, sizes))} rows{apart}"
        )

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
        training, here = self.blocks[index], root.rows(self.rows[index])
        if self.bound == "upper":
            here = here.scaled(training.outputs.new_tensor(math.sqrt(self.total)))
            found = _exact(training, prior, here).log_determinant()
        elif self.outputs == "joint" or here.rank == 1:
            found = self.total * _exact(training, prior, here).log_determinant()
        else:
            each = [
                _exact(_single_output(training, weights), prior, column).log_determinant()
                for weights, column in _columns(here)
            ]
            found = self.total * torch.stack(each).sum()
        if not self.keeps:
            training.release_factors()
        return found


class BlocksPosterior(Posterior):
    """An estimate of log det(I + Φ Φᵀ), and nothing else of a posterior.

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
        method, inputs = self._method, [variances, *tensors]
        leaves = [t.detach().requires_grad_(gradients and t.requires_grad) for t in inputs]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        totals = [torch.zeros_like(leaf) for leaf in wanted]
        values = []
        for index in range(len(method.rows)):
            with torch.set_grad_enabled(gradients):
                prior = cast(Prior, _Values(leaves[0], self.isotropic))
                root = self.root.with_tensors(*leaves[1:])
                value = method.log_determinant(index, prior, root)
            values.append(value.detach())
            if wanted:
                found = torch.autograd.grad(value, wanted)
                totals = [t + g / len(method.rows) for t, g in zip(totals, found, strict=True)]
        self._each = torch.stack(values)
        by_input = iter(totals)
        return self._each.mean(), [next(by_input) if t.requires_grad else None for t in leaves]

    def solve(self, z: Tensor) -> Tensor:
        _refuse('the posterior mean: use mean="network"')

    def precision_solve(self, b: Tensor) -> Tensor:
        _refuse('the posterior mean: use mean="network"')

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


class _Average(torch.autograd.Function):
    """The estimate; derivatives are computed along with it, so that one block's graph is alive."""

    @staticmethod
    def forward(
        ctx: Any, posterior: BlocksPosterior, variances: Tensor, *tensors: Tensor
    ) -> Tensor:
        value, gradients = posterior.estimate(variances, *tensors, gradients=True)
        ctx.save_for_backward(variances, *tensors)
        ctx.gradients = gradients
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        def scaled() -> list[Tensor | None]:
            return [None if g is None else grad * g for g in ctx.gradients]

        return None, *first_order(scaled, grad, *ctx.saved_tensors)


@dataclass(frozen=True)
class _Values:
    """A prior's variances at the moment."""

    values: Tensor
    isotropic: bool

    def variances(self) -> Tensor:
        return self.values


def _exact(training: TrainingSet, prior: Prior, root: CurvatureRoot) -> Posterior:
    """The exact posterior of one block, in the smaller space."""
    in_functions = training.num_data * root.rank <= training.num_parameters
    return (FunctionSpace if in_functions else WeightSpace)(training, prior, root)


def _columns(root: CurvatureRoot) -> list[tuple[Tensor, CurvatureRoot]]:
    """Each column of R as a combination of outputs (m x C) and what multiplies it, (m x 1 x 1)."""
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


def _single_output(training: TrainingSet, weights: Tensor) -> TrainingSet:
    """The rows with one output, a combination (m x C) of all outputs."""
    return TrainingSet(
        training.linearized,
        training.inputs,
        training.outputs[:, :1],
        training.targets,
        [combine_outputs(training.factors(), weights)],
        chunk_bytes=training.chunk_bytes,
        progress=False,
    )


def _rows_of(training: TrainingSet, rows: Tensor) -> TrainingSet:
    """Some of the data, as few large batches."""
    chosen = training.subset(rows)
    chosen.inputs = _merged(chosen.inputs, max(num_rows(x) for x in training.inputs))
    chosen.progress = False
    return chosen


def _merged(batches: list[Inputs], most: int) -> list[Inputs]:
    """Neighbouring batches of the same kind put together, to at most so many rows."""
    merged: list[Inputs] = []
    for x in batches:
        last = merged[-1] if merged else None
        if last is None or signature(last) != signature(x) or num_rows(last) + num_rows(x) > most:
            merged.append(x)
            continue
        tensors = iter(
            [torch.cat(pair) for pair in zip(input_tensors(last), input_tensors(x), strict=True)]
        )
        merged[-1] = map_inputs(lambda _, ts=tensors: next(ts), x)  # type: ignore[misc]
    return merged


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f"inference: Blocks(...) estimates the evidence and does without {what}; predict with "
        'another inference, as LinearizedGP(net, likelihood, prior=prior, inference="auto")'
    )
