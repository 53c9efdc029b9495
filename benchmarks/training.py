"""Training of the benchmarks' networks: Adam towards the mode of the posterior."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def train(
    network: nn.Module,
    loss: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    steps: int,
    precision: float,
    update_every: int | None = None,
    update: Callable[[], float] | None = None,
    learning_rate: tuple[float, float] = (1e-2, 1e-5),
) -> nn.Module:
    """Minimise ``loss(f) + ½ τ |θ|²`` by full-batch Adam, with a cosine schedule.

    Parameters
    ----------
    network : nn.Module
        Trained in place.
    loss : callable
        Outputs (N x C) to the sum over data of -log p(y_n | f_n).
    x : Tensor, (N x D)
        All inputs.
    steps : int
        Steps of Adam.
    precision : float
        τ, the prior's precision; 0 is no weight decay.
    update_every, update
        Every so many steps, but not after the last, `update()` gives the τ to go on with.
    learning_rate : (float, float)
        Of the first and the last step.

    Returns
    -------
    nn.Module
        The network, in evaluation mode.
    """
    parameters = list(network.parameters())
    first, last = learning_rate
    optimizer = torch.optim.Adam(parameters, lr=first)
    network.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = last + 0.5 * (first - last) * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        decay = sum(p.square().sum() for p in parameters)
        # Divided by N: Adam does not mind, and its epsilon then means the same on every set.
        ((loss(network(x)) + 0.5 * precision * decay) / len(x)).backward()
        optimizer.step()
        done = step + 1
        if update is not None and update_every and done % update_every == 0 and done < steps:
            network.eval()
            precision = update()
            network.train()
    return network.eval()


def train_in_batches(
    network: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    precision: float,
    batch_size: int = 256,
    learning_rate: tuple[float, float] = (1e-3, 1e-5),
) -> nn.Module:
    """Minimise ``loss(f, y) + ½ τ |θ|²`` by Adam on random batches, with a cosine schedule.

    Parameters
    ----------
    network : nn.Module
        Trained in place.
    loss : callable
        Outputs (n x C) and targets of some rows to the sum over them of -log p(y_n | f_n).
    x, y : Tensor
        All inputs (N x D) and targets (N, ...).
    epochs : int
        Passes over the data.
    precision : float
        τ, the prior's precision; 0 is no weight decay.
    batch_size : int
        Rows per step.
    learning_rate : (float, float)
        Of the first and the last step.

    Returns
    -------
    nn.Module
        The network, in evaluation mode.
    """
    first, last = learning_rate
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(parameters, lr=first)
    generator = torch.Generator().manual_seed(0)
    steps, step = epochs * -(-len(x) // batch_size), 0
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(batch_size):
            for group in optimizer.param_groups:
                group["lr"] = last + 0.5 * (first - last) * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            decay = sum(p.square().sum() for p in parameters)
            # per datum, as in `train`
            mean_loss = loss(network(x[rows]), y[rows]) / len(rows)
            (mean_loss + 0.5 * precision * decay / len(x)).backward()
            optimizer.step()
            step += 1
    return network.eval()
