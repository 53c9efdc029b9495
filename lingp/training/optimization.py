"""An optimizer with its learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lingp.training.plan import TrainingPlan

_RATES = (1e-2, 1e-5)


class Optimization:
    """An optimizer at the learning rates of a plan.

    Parameters
    ----------
    weights
        What is moved.
    plan
        What makes the optimizer, and its learning rates.
    num_steps
        How many steps there will be.
    steady
        Whether the loss of given outputs stays the same all along. Else Adam has a memory of a
        hundred steps, fewer than there usually are between two changes, instead of a thousand.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        plan: TrainingPlan,
        num_steps: int,
        steady: bool = True,
    ) -> None:
        self.num_steps, make, rates = num_steps, plan.optimizer, plan.learning_rate
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
        self.scheduler: LRScheduler | None = None
        self._rates: tuple[float, float] | None = None
        if callable(rates):
            self.scheduler = rates(self.optimizer)
            if not hasattr(self.scheduler, "state_dict"):
                raise TypeError(
                    "learning_rate: expected a function from an optimizer to a "
                    "torch.optim.lr_scheduler, got one that gives "
                    f"{type(self.scheduler).__name__}"
                )
        elif rates is not None:
            self._rates = rates if isinstance(rates, tuple) else (rates, rates)

    @property
    def rate(self) -> float:
        """Of the first group of parameters, now."""
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, number: int, loss: Callable[[], Tensor]) -> Tensor:
        """Step `number`, from 0; the loss before it, without a graph."""
        if self._rates is not None:
            rate = cosine(*self._rates, number / self.num_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate

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
        """What tells it from others."""
        groups = [
            {k: v for k, v in group.items() if k != "params"}
            for group in self.optimizer.state_dict()["param_groups"]
        ]
        scheduler = "" if self.scheduler is None else f" {type(self.scheduler).__name__}"
        return f"{type(self.optimizer).__name__} {groups}{scheduler}"

    def state_dict(self) -> dict[str, Any]:
        """Of optimizer and scheduler."""
        scheduler = None if self.scheduler is None else self.scheduler.state_dict()
        return {"optimizer": self.optimizer.state_dict(), "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])


def cosine(first: float, last: float, share: float) -> float:
    """Half a period of a cosine from `first` to `last`, at a share of the way."""
    return last + 0.5 * (first - last) * (1 + math.cos(math.pi * share))
