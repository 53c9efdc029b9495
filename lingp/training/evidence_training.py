"""Training of a network and its prior together, by the evidence."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from lingp.inference import Mean
from lingp.likelihoods import Likelihood, as_likelihood
from lingp.linearization import LinearizedNetwork, ParameterSelection
from lingp.linearization.inputs import Inputs, map_inputs, num_rows
from lingp.models import LinearizedGP
from lingp.models.choice import Inference
from lingp.models.intake import as_inputs, as_tensor
from lingp.priors import Prior, as_prior
from lingp.training.hyperparameter_step import EvidenceStep, hyperparameter_step
from lingp.training.input_learner import InputLearner
from lingp.training.map_loss import penalty

STEPS, UPDATES = 2400, 8
FULL_BATCH = 2048  # rows up to which every step takes all of them


@dataclass(frozen=True)
class EvidenceTraining:
    """A network trained with the evidence.

    Attributes
    ----------
    net
        The trained copy of the network, in evaluation mode.
    prior, likelihood
        With the hyperparameters found.
    gp
        `LinearizedGP` of the network, conditioned on the training data.
    history
        The hyperparameter steps, in order.
    """

    net: nn.Module
    prior: Prior
    likelihood: Likelihood
    gp: LinearizedGP
    history: list[EvidenceStep] = field(default_factory=list)


def train_with_evidence(
    net: nn.Module,
    X: Any,
    y: Any,
    *,
    likelihood: Likelihood | str = "gaussian",
    prior: Prior | float | None = None,
    parameters: ParameterSelection = "all",
    steps: int = STEPS,
    updates: int = UPDATES,
    batch_size: int | None = None,
    learning_rate: tuple[float, float] = (1e-2, 1e-5),
    inference: Inference = "auto",
    mean: Mean = "network",
    generator: torch.Generator | None = None,
    input_learner: InputLearner | None = None,
    progress: bool = True,
) -> EvidenceTraining:
    """Train a copy of the network by maximum a posteriori and its prior by the evidence.

    Parameters
    ----------
    net
        The network to start from; it stays as it is.
    X, y
        Inputs and targets.
    likelihood, prior, parameters, inference, mean
        As in `LinearizedGP`. Likelihood and prior are copied.
    steps
        Of Adam.
    updates
        Hyperparameter steps, evenly spaced, the last one after the last step of Adam.
    batch_size
        Rows of a step; by default all, or 256 where there are more than 2048.
    learning_rate
        Of the first and the last step, a cosine between them.
    generator
        Draws the batches.
    input_learner
        Moves parameters of the inputs, of an `Augmented` network, while it is trained.
    progress
        Whether a progress bar is shown.
    """
    network, likelihood = copy.deepcopy(net), copy.deepcopy(as_likelihood(likelihood))
    prior = copy.deepcopy(as_prior(prior))
    prior.bind_to(LinearizedNetwork(network, parameters))
    inputs, targets = as_inputs(X), as_tensor(y, "y")
    weights = [p for p in network.parameters() if p.requires_grad]
    dtype, device = weights[0].dtype, weights[0].device
    inputs = map_inputs(lambda t: t.to(device, dtype if t.is_floating_point() else None), inputs)
    with torch.no_grad():
        shape = tuple(network(map_inputs(lambda t: t[:1], inputs)).shape[1:]) or (1,)
    checked = likelihood.check_targets(targets, shape, dtype).to(device)
    draw = _batches(inputs, checked, batch_size, generator)
    optimizer = torch.optim.Adam(weights, lr=learning_rate[0])
    history: list[EvidenceStep] = []

    def update() -> None:
        network.eval()
        found = hyperparameter_step(
            network,
            X,
            y,
            likelihood=likelihood,
            prior=prior,
            parameters=parameters,
            inference=inference,
            mean=mean,
        )
        history.append(found)

    first, last = learning_rate
    every = max(1, steps // updates)
    for step in range(steps):
        network.train()
        for group in optimizer.param_groups:
            group["lr"] = last + 0.5 * (first - last) * (1 + math.cos(math.pi * step / steps))
        x_batch, y_batch = next(draw)
        f = network(x_batch).reshape(len(y_batch), -1)
        optimizer.zero_grad()
        share = len(checked) / len(y_batch)
        loss = penalty(network, prior) - share * likelihood.log_prob(y_batch, f).sum()
        # per datum: Adam does not mind, and its epsilon means the same for any N
        (loss / len(checked)).backward()
        optimizer.step()
        if input_learner is not None and input_learner.due(step):
            input_learner.step(
                network, X, y, likelihood=likelihood, prior=prior, parameters=parameters
            )
        if (step + 1) % every == 0 and step + 1 <= steps - every:
            update()
    update()
    gp = LinearizedGP(
        network, likelihood, prior=prior, parameters=parameters, inference=inference, mean=mean
    ).fit(X, y, progress=False)
    return EvidenceTraining(network.eval(), prior, likelihood, gp, history)


def _batches(
    inputs: Inputs, targets: Tensor, size: int | None, generator: torch.Generator | None
) -> Iterator[tuple[Inputs, Tensor]]:
    """Batches without end."""
    number = num_rows(inputs)
    size = size or (number if number <= FULL_BATCH else 256)
    generator = generator or torch.Generator().manual_seed(0)
    while True:
        if size >= number:
            yield inputs, targets
            continue
        for rows in torch.randperm(number, generator=generator).split(size):
            yield map_inputs(itemgetter(rows), inputs), targets[rows]
