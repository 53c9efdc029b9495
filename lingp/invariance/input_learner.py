"""Steps of the inputs' parameters up the evidence, in the middle of training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lingp.inference import Posterior
from lingp.invariance.augmentations import Augmented
from lingp.invariance.gradient import EvidenceGradient, estimate
from lingp.invariance.input_model import InputModel
from lingp.likelihoods import Likelihood
from lingp.linearization import ParameterSelection
from lingp.priors import Prior

_MOMENTS, _EPSILON = (0.9, 0.95), 1e-12  # gradients shrink a lot while the network is trained


@dataclass(frozen=True)
class InputStep:
    """One step of the inputs' parameters.

    Attributes
    ----------
    evidence
        Estimate of the evidence before the step.
    values
        Parameters of the augmentation after it, in the units of their meaning.
    """

    evidence: float
    values: dict[str, Any]

    def __str__(self) -> str:
        return f"evidence about {self.evidence:.6g}, {shown(self.values)}"


def shown(values: dict[str, Any]) -> str:
    """Named numbers and lists of them, in few digits."""
    parts = []
    for name, value in values.items():
        numbers = torch.as_tensor(value).flatten().tolist()
        text = ", ".join(f"{v:.4g}" for v in numbers[:8]) + (", ..." if len(numbers) > 8 else "")
        parts.append(f"{name} = {text if len(numbers) == 1 else f'[{text}]'}")
    return "; ".join(parts)


@dataclass
class InputLearner:
    """Adam on the learnable parameters of an `Augmented` network, up the evidence.

    For a training loop of your own call `step` every some steps of the weights; or hand it to
    `train_with_evidence(..., input_learner=...)`.

    Parameters
    ----------
    learning_rate
        Largest change of a parameter in one step; parameters are logarithms, so that 0.05 is 5 %.
    every
        Steps of the weights between two steps of the inputs.
    start
        Steps of the weights before the first: a network that knows nothing yet asks for any
        invariance.
    decay
        After so many steps the learning rate has halved: it falls as 1 / (1 + step / decay).
    block_size, num_blocks, dtype
        As in `evidence_gradient`, for the random rows that a step takes.
    max_parameters
        Up to so many weights, the determinant's gradient is that of all rows; for more, it is that
        of the blocks' bound.
    refresh, curvature_rows
        The posterior of all rows is computed anew every so many steps, and when the prior has
        moved, from all rows or this number of random ones.
    generator
        Draws the blocks; one seeded with 0 by default.

    Attributes
    ----------
    history
        The steps, in order.
    """

    learning_rate: float = 0.05
    every: int = 10
    start: int = 0
    decay: float = 50.0
    block_size: int | None = None
    num_blocks: int = 1
    dtype: torch.dtype = torch.float64
    max_parameters: int = 3000
    refresh: int = 5
    curvature_rows: int = 2000
    generator: torch.Generator | None = None
    history: list[InputStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("learning_rate", "every", "decay", "num_blocks", "refresh", "curvature_rows"):
            value = getattr(self, name)
            if not (value > 0 and (name == "decay" or math.isfinite(value))):
                raise ValueError(f"{name}: expected a positive number, got {value}")
        if self.start < 0:
            raise ValueError(f"start: expected at least 0, got {self.start}")
        self.generator = self.generator or torch.Generator().manual_seed(0)
        self._moments: dict[str, tuple[Tensor, Tensor]] = {}
        self._kept: dict[str, Any] | None = None  # of the posterior of all rows

    def due(self, step: int) -> bool:
        """Whether a step of the inputs follows step number `step` (from 0) of the weights."""
        return step >= self.start and (step + 1) % self.every == 0

    def step(
        self,
        net: nn.Module,
        X: Any,
        y: Any,
        *,
        likelihood: Likelihood,
        prior: Prior,
        parameters: ParameterSelection = "all",
    ) -> InputStep:
        """Move the learnable parameters of an `Augmented` net, in place; its weights and mode stay.

        A prior with mean="network" stays at the weights that it was first bound to.

        Raises
        ------
        FloatingPointError
            If weights or a gradient aren't finite; nothing has moved then.
        """
        bad = [name for name, p in net.named_parameters() if not bool(p.isfinite().all())]
        if bad:
            raise FloatingPointError(
                f"net: {bad[0]} is not finite; lower the learning rate of the weights"
            )
        if prior.names is not None:
            prior.hold_mean()
        model = InputModel.of(net, X, y, likelihood, prior, parameters, self.dtype)
        prior.hold_mean()  # the weights move on
        found = self._estimate(model, net)
        if not all(bool(g.isfinite().all()) for g in found.gradients.values()):
            raise FloatingPointError(
                "the evidence's gradient in parameters of the inputs is not finite; lower the "
                "learning rates, or start the inputs' steps later"
            )
        count = len(self.history) + 1
        assert isinstance(net, Augmented)
        own = dict(net.augmentation.named_parameters())
        for name, gradient in found.gradients.items():
            direction = self._direction(name, gradient, count)
            own[name].data.add_(direction, alpha=self.learning_rate / (1 + count / self.decay))
        values = {name: value.tolist() for name, value in net.values().items()}
        self.history.append(InputStep(found.evidence, values))
        return self.history[-1]

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on: tensors, numbers, dicts and lists."""
        assert self.generator is not None
        return {
            "moments": {name: list(pair) for name, pair in self._moments.items()},
            "generator": self.generator.get_state(),
            "history": [dict(vars(step)) for step in self.history],
            "posterior": self._kept,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        assert self.generator is not None
        self._moments = {name: (a, b) for name, (a, b) in state["moments"].items()}
        self.generator.set_state(state["generator"])
        self.history[:] = [InputStep(**step) for step in state["history"]]
        self._kept = state["posterior"]

    def _estimate(self, model: InputModel, net: nn.Module) -> EvidenceGradient:
        """Evidence and gradient from random blocks."""
        size = model.block_size(self.block_size)
        blocks = model.blocks(size, self.generator)[: self.num_blocks]
        few = model.network.num_parameters <= self.max_parameters
        return estimate(model, net, blocks, size, self._posterior(model, size) if few else None)

    def _posterior(self, model: InputModel, size: int) -> Posterior:
        """The posterior of all rows, which may be some steps old, but is of the prior as it is."""
        variances, kept = model.prior.variances().detach().clone(), self._kept
        same = kept is not None and torch.equal(kept["variances"].to(variances), variances)
        if kept is not None and same and len(self.history) % self.refresh:
            return model.restored(kept["state"])
        rows = torch.randperm(model.num_data, generator=self.generator)[: self.curvature_rows]
        posterior = model.posterior_from(rows, size)
        self._kept = {"variances": variances, "state": posterior.state()}
        return posterior

    def _direction(self, name: str, gradient: Tensor, count: int) -> Tensor:
        """Adam's."""
        zeros = torch.zeros_like(gradient)
        first, second = (m.to(gradient) for m in self._moments.get(name, (zeros, zeros)))
        a, b = _MOMENTS
        first = a * first + (1 - a) * gradient
        second = b * second + (1 - b) * gradient.square()
        self._moments[name] = (first, second)
        return (first / (1 - a**count)) / ((second / (1 - b**count)).sqrt() + _EPSILON)
