"""Networks of fully connected layers for people who don't want to build their own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
SIZES = (50, 50)


def layer_sizes(given: Any) -> tuple[int, ...]:
    """Widths of the hidden layers as given, or two layers of 50."""
    if given is None:
        return SIZES
    if isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, str):
        sizes = list(given)
    else:
        sizes = [given]
    if not all(isinstance(s, (int, np.integer)) and s >= 1 for s in sizes):
        raise ValueError(
            "hidden_layer_sizes: expected whole numbers >= 1, one for each hidden layer, such as "
            f"(50, 50), or None, got {given!r}"
        )
    return tuple(int(s) for s in sizes)


def build_network(
    num_inputs: int, hidden: Sequence[int], num_outputs: int, activation: str, seed: int
) -> nn.Sequential:
    """Linear layers with activations between them, float64, on the CPU.

    First weights are torch's own, drawn from `seed`; torch's global generator stays as it is.
    Without hidden layers it is one linear layer, which starts at zero.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation: expected one of {', '.join(map(repr, ACTIVATIONS))}, got {activation!r}; "
            "for others give the network itself, as module"
        )
    make = ACTIVATIONS[activation]
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        for size, following in pairwise([num_inputs, *hidden, num_outputs]):
            # the device is named: a default device would have a generator of its own
            layers += [nn.Linear(size, following, device="cpu", dtype=torch.float64), make()]
    network = nn.Sequential(*layers[:-1])
    if not hidden:
        for parameter in network.parameters():
            nn.init.zeros_(parameter)
    return network
