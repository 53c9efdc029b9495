"""Layers of many positions and wide weights: inner products of positions first, then of gradients.

K[(n, c), (m, d)] = Σ_s g_{ncs} · h_{ns,md}        h_{ns,md} = Σ_t (a_{ns} · a_{mt}) g_{mdt}
"""

from __future__ import annotations

import torch
from torch import Tensor

from lingp.linearization.blocks import OuterBlock


def add_positions_(
    kernel: Tensor, a: OuterBlock, b: OuterBlock, variances: Tensor, symmetric: bool
) -> None:
    """Contract the right-hand g with the positions' inner products, then with the left-hand g."""
    outputs, fan_out = a.num_outputs, a.fan_out
    positions = a.num_positions
    g_right = b.every_g().transpose(1, 2).flatten(2)  # (M, T, C O)
    g_left = a.every_g().flatten(2)  # (N, C, S O)
    for n in range(a.num_data):
        stop = n + 1 if symmetric else b.num_data
        inner = torch.einsum("si,mti->mst", a.a[n], b.a[:stop]).mul_(variances[a.weight.parameter])
        if a.bias is not None:
            inner.add_(variances[a.bias.parameter])
        moved = (inner @ g_right[:stop]).view(stop, positions, outputs, fan_out)
        moved = moved.transpose(1, 2).reshape(stop * outputs, positions * fan_out)
        kernel[n * outputs : (n + 1) * outputs, : stop * outputs].addmm_(g_left[n], moved.T)
