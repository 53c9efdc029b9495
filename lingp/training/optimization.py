"""An optimizer with its learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lingp.training.plan import LearningRate, TrainingPlan

_RATES = (1e-2, 1e-5)


class Optimization:
    """An optimizer at the learning rates of a plan.

    Parameters
    ----------
    weights
        The parameters that are moved.
    plan
        It makes the optimizer, and has its learning rates.
    num_steps
        How many steps there will be.
    steady
        Whether the loss of given outputs stays the same all along. Else Adam has a memory of a
        hundred steps, fewer than there usually are between two changes, instead of a thousand.

    Attributes
    ----------
    rate
        The learning rate of the last step, for the first group of parameters.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        plan: TrainingPlan,
        num_steps: int,
        steady: bool = True,
    ) -> None:
        make, rates = plan.optimizer, plan.learning_rate
        if make is None and rates is None:
            rates = _RATES
        self.weights = list(weights)
        if make is None:
            betas = (0.9, 0.999 if steady else 0.99)
            self.optimizer: Optimizer = torch.optim.Adam(self.weights, betas=betas)
        else:
            self.optimizer = make(self.weights)
        if not isinstance(self.optimizer, Optimizer):
            raise TypeError(
                "optimizer: expected a function from parameters to a torch.optim.Optimizer, such "
                "as lambda parameters: torch.optim.SGD(parameters, lr=0.1), got one that gives "
                f"{type(self.optimizer).__name__}"
            )
        self.scheduler = _scheduler(self.optimizer, rates, num_steps)
        self.rate = float(self.optimizer.param_groups[0]["lr"])

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        """The next step; the loss before it, without a graph."""
        self.rate = float(self.optimizer.param_groups[0]["lr"])

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            value = loss()
            value.backward(inputs=self.weights)  # not of hyperparameters
            return value

        found = self.optimizer.step(closure)  # type: ignore[arg-type]
        if self.scheduler is not None:
            self.scheduler.step()
        return torch.as_tensor(found).detach()

    def describe(self) -> str:
        """A text that tells this optimizer from others."""
        groups = [
            {k: v for k, v in group.items() if k != "params"}
            for group in self.optimizer.state_dict()["param_groups"]
        ]
        scheduler = "" if self.scheduler is None else f" {type(self.scheduler).__name__}"
        return f"{type(self.optimizer).__name__} {groups}{scheduler}"

    def state_dict(self) -> dict[str, Any]:
        """The states of optimizer and scheduler."""
        scheduler = None if self.scheduler is None else self.scheduler.state_dict()
        return {"optimizer": self.optimizer.state_dict(), "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])


def _scheduler(
    optimizer: Optimizer, rates: LearningRate | None, num_steps: int
) -> LRScheduler | None:
    """The scheduler that moves the learning rate; None where the optimizer keeps its own."""
    if rates is None:
        return None
    if not callable(rates):
        first, last = rates if isinstance(rates, tuple) else (rates, rates)
        return _Cosine(optimizer, first, last, num_steps)
    made = rates(optimizer)
    if not hasattr(made, "state_dict"):
        raise TypeError(
            "learning_rate: expected a function from an optimizer to a torch.optim.lr_scheduler, "
            f"got one that gives {type(made).__name__}"
        )
    return made


class _Cosine(LRScheduler):
    """Half a period of a cosine between two learning rates of all groups.

    In closed form: torch's own goes from rate to rate, and rounding adds up.
    """

    def __init__(self, optimizer: Optimizer, first: float, last: float, num_steps: int) -> None:
        self.first, self.last, self.num_steps = first, last, num_steps
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        share = self.last_epoch / self.num_steps
        rate = self.last + 0.5 * (self.first - self.last) * (1 + math.cos(math.pi * share))
        return [rate for _ in self.optimizer.param_groups]
