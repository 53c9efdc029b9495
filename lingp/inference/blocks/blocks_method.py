"""Inference by blocks of rows as the user asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, get_args

import torch

from lingp.inference.blocks.determinant import BoundBlocks, Estimate, Outputs
from lingp.inference.protocol import Options
from lingp.inference.training_set import TrainingSet
from lingp.priors import Prior
from lingp.runtime.memory import format_bytes

_ROWS = 1000  # m·C of a block, where the user doesn't say
_FEWEST = 32  # rows of such a block
_COPIES = 8  # matrices of a block's size at the peak


@dataclass(frozen=True)
class Blocks(Options):
    """The evidence from random blocks of rows: for the hyperparameters of large data.

    Blocks are drawn when a model is given data and stay from then on: within one
    `hyperparameter_step` the objective is a smooth function, and the next step has other blocks.
    There is no posterior to predict with.

    Attributes
    ----------
    size
        m, rows of a block; by default about 1000 / C, at least 32. A block of all rows is exact.
    num_blocks
        The number that is drawn of the N / m blocks there are. Two or more tell a standard error.
    estimate
        The estimate: the evidence's "lower" or "upper" bound by blocks of this size, or what is
        "between" them where they would meet. See `lingp.inference.blocks`.
    outputs
        "joint", or "separate" for blocks of one output: wider bounds, for 1 / C² of the time and
        memory of factorisations.
    generator
        Draws the blocks; by default one with the same seed for each `Blocks()`.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> X = torch.linspace(-1, 1, 200).unsqueeze(1)
    >>> gp = lingp.LinearizedGP(net, inference=lingp.inference.Blocks(50, num_blocks=2))
    >>> gp.fit(X, X.sin()).evidence().standard_error > 0
    True

    Raises
    ------
    ValueError
        If a number is out of range or an option unknown.
    """

    predicts: ClassVar[bool] = False
    streams: ClassVar[bool] = True

    size: int | None = None
    num_blocks: int = 4
    estimate: Estimate = "between"
    outputs: Outputs = "joint"
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def __post_init__(self) -> None:
        for name, number in (("size", self.size), ("num_blocks", self.num_blocks)):
            if number is not None and number < 1:
                raise ValueError(f"{name}: got {number}; expected 1 or more")
        for name, options in (("estimate", Estimate), ("outputs", Outputs)):
            value = getattr(self, name)
            if value not in get_args(options):
                listed = ", ".join(f'"{option}"' for option in get_args(options))
                raise ValueError(f"{name}: expected one of {listed}, got {value!r}")

    def bind(self, training: TrainingSet, prior: Prior, memory: float) -> BoundBlocks:
        """The method with blocks drawn from these data.

        Parameters
        ----------
        training
            The training data.
        prior
            A bound prior; blocks don't depend on it.
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
        # which of them: by chance, for the first ones may have a row more than the others
        chosen = torch.randperm(total, generator=generator, device=device)[: self.num_blocks]
        parts = order.tensor_split(total)
        rows = [parts[b].sort().values.to(training.outputs.device) for b in chosen.tolist()]
        return BoundBlocks(training, rows, total, self.estimate, self.outputs, memory / 2)

    def _check_memory(self, training: TrainingSet, size: int, memory: float) -> None:
        """Raise unless the matrices and the factors of one block fit."""
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
