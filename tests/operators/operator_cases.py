"""Small factors with known dense Jacobians, for the operator tests."""

import torch
from torch import nn

from lingp.linearization import LinearizedNetwork


def make_network(inputs=4, outputs=2, seed=0, dtype=torch.float32):
    """A two-layer network whose NTK on a few points is well conditioned (P well above N·C)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))
    return net.to(dtype)


def make_inputs(rows, inputs=4, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.randn(rows, inputs, generator=generator, dtype=torch.float64).to(dtype)


def make_factors(rows, outputs, seed=0, dtype=torch.float32):
    """Factors of `make_network` at `make_inputs`: P well above N·C."""
    net = LinearizedNetwork(make_network(outputs=outputs, dtype=dtype))
    return net.factors(make_inputs(rows, seed=seed, dtype=dtype))[1]


def make_tall_factors(rows, outputs, dtype=torch.float32):
    """Factors of a single linear layer with P = 5 C, well below N·C: the GGN has an inverse."""
    net = nn.Linear(4, outputs).to(dtype)
    return LinearizedNetwork(net).factors(make_inputs(rows, dtype=dtype))[1]


def make_root(rows, outputs, columns, seed=0, dtype=torch.float32):
    """Curvature roots R_n (N, C, K)."""
    generator = torch.Generator().manual_seed(200 + seed)
    root = torch.randn(rows, outputs, columns, generator=generator, dtype=torch.float64)
    return (root / rows**0.5).to(dtype)
