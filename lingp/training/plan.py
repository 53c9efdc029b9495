"""When training does what, and how: steps, hyperparameter steps among them, learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lingp.models.tuning import SearchMethod

STEPS, STEPS_OF_BATCHES = 2400, 10_000
UPDATES, UPDATES_OF_SMALL = 8, 24
SMALL = 2e9  # flops of a factorisation: below, updates cost less than the training between them

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
LearningRate = float | tuple[float, float] | Callable[[Optimizer], LRScheduler]
Kept = Literal["last", "evidence"]

# the smallest value of whole numbers
_LEAST = {
    "steps": 1,
    "epochs": 1,
    "burn_in": 1,
    "updates": 0,
    "every": 1,
    "patience": 1,
    "batch_size": 1,
    "checkpoint_every": 1,
}


@dataclass(frozen=True)
class TrainingPlan:
    """How a network is trained: steps of the weights and, among them, steps of hyperparameters.

    Attributes
    ----------
    steps, epochs
        How long: steps of the optimizer (by default 2400, or 10,000 where a step has a part of the
        data), or times through the data.
    burn_in
        Steps before the first hyperparameter step; by default as many as between two of them.
    updates, every
        How many hyperparameter steps there are, evenly spaced (by default 24 where they cost
        little, else 8; 0: the hyperparameters stay), or how many steps of the optimizer lie between
        them. The last one comes at the end.
    learning_rate
        The rates of the first and the last step, with a cosine between them; one for all steps;
        or a function that makes a `torch.optim.lr_scheduler` for the optimizer. By default from
        1e-2 to 1e-5, or what a given optimizer has.
    select
        Which state is kept: the "last", or that of the largest "evidence" of those after a
        hyperparameter step.
    patience
        Training stops after so many hyperparameter steps in succession without a larger evidence.
    hold
        Whether hyperparameters stay where they are when moving them doesn't reach the largest
        evidence so far: a network that begins to overfit asks for less noise than there is.
    batch_size
        Rows of a step, of arrays and datasets; by default all, or 256 where there are more than
        2048.
    optimizer
        A function from parameters to a `torch.optim.Optimizer`; Adam by default. When noise falls,
        the loss that it sees is scaled, so that predictions weigh as much in it as before.
    method
        How hyperparameters move, as in `LinearizedGP.optimize_hyperparameters`.
    checkpoint_every
        A checkpoint is written every so many steps, besides those after hyperparameter steps.

    Raises
    ------
    ValueError
        For numbers out of range and options that don't go together.
    """

    steps: int | None = None
    epochs: int | None = None
    burn_in: int | None = None
    updates: int | None = None
    every: int | None = None
    learning_rate: LearningRate | None = None
    select: Kept = "last"
    patience: int | None = None
    hold: bool = False
    batch_size: int | None = None
    optimizer: MakeOptimizer | None = None
    method: SearchMethod = "auto"
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        for name, lowest in _LEAST.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or int(value) != value):
                raise ValueError(f"{name}: expected a whole number, got {value!r}")
            if value is not None and value < lowest:
                raise ValueError(f"{name}: expected at least {lowest}, got {value}")
        for one, other in (("steps", "epochs"), ("updates", "every")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ValueError(f"{one} and {other}: give one of them, not both")
        if self.select not in ("last", "evidence"):
            raise ValueError(f'select: expected "last" or "evidence", got {self.select!r}')
        if self.updates == 0 and (self.burn_in or self.patience or self.select == "evidence"):
            raise ValueError(
                "updates: 0, so there are no evidences for burn_in, patience and select to go by"
            )
        self._check_rates()

    def num_steps(self, batches_per_epoch: int) -> int:
        """How many steps the optimizer takes."""
        if self.epochs is not None:
            return self.epochs * batches_per_epoch
        return self.steps or (STEPS if batches_per_epoch == 1 else STEPS_OF_BATCHES)

    def hyperparameter_steps(self, num_steps: int, flops: float = 0.0) -> frozenset[int]:
        """After which steps of the optimizer, counted from 1, the hyperparameters move.

        Parameters
        ----------
        num_steps
            How many steps the optimizer takes.
        flops
            What one factorisation costs, on which the default number depends.
        """
        if self.burn_in is not None and self.burn_in > num_steps:
            raise ValueError(
                f"burn_in: {self.burn_in}, but training has only {num_steps} steps; give less"
            )
        if self.every is not None:
            first = self.burn_in or self.every
            return frozenset({*range(first, num_steps, self.every), num_steps})
        updates = self.updates
        if updates is None:
            updates = min(UPDATES_OF_SMALL if flops < SMALL else UPDATES, num_steps)
        if updates <= 1:
            return frozenset({num_steps} if updates else ())
        first = self.burn_in or max(1, num_steps // updates)
        between = (num_steps - first) / (updates - 1)
        return frozenset(round(first + i * between) for i in range(updates))

    def _check_rates(self) -> None:
        rates = self.learning_rate
        if rates is None or callable(rates):
            return
        given = rates if isinstance(rates, tuple) else (rates,)
        numbers = all(isinstance(r, (int, float)) and math.isfinite(r) and r >= 0 for r in given)
        if not numbers or len(given) > 2:
            raise ValueError(
                "learning_rate: expected a number, (first, last), or a function that makes a "
                f"torch.optim.lr_scheduler for the optimizer, got {rates!r}"
            )
