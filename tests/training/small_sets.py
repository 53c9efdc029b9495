"""Small data and networks for tests of training."""

import itertools

import torch
from torch import nn


def waves(n=24, outputs=1, dtype=torch.float64, seed=0):
    """Inputs (n, 1) and noisy sines (n, outputs)."""
    g = torch.Generator().manual_seed(seed)
    x = 3 * torch.rand(n, 1, generator=g, dtype=dtype) - 1.5
    phases = torch.arange(outputs, dtype=dtype)
    noise = 0.1 * torch.randn(n, outputs, generator=g, dtype=dtype)
    return x, (2 * x + phases).sin() + noise


def mlp(*sizes, dtype=torch.float64, seed=0):
    """Tanh network of these sizes, with weights drawn by a generator of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b), nn.Tanh()]
        return nn.Sequential(*layers[:-1]).to(dtype)
