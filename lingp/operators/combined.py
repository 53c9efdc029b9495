"""One output made of all outputs: rows Σ_c w_nc J_nc of the Jacobian, still as layer factors."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lingp.linearization import Factors
from lingp.linearization.blocks import Block, DenseBlock, LookupBlock, OuterBlock


def combine_outputs(factors: Factors, weights: Tensor) -> Factors:
    """Factors of the N rows Σ_c w_nc J_nc, with one output.

    Parameters
    ----------
    factors
        Of J (N·C x P).
    weights
        w, (N x C).
    """
    expected = (factors.num_data, factors.num_outputs)
    if tuple(weights.shape) != expected:
        raise ValueError(
            f"weights: got shape {tuple(weights.shape)}; expected {expected}, one for each output "
            "of each example"
        )
    blocks = tuple(made for block in factors.blocks for made in _combined(block, weights))
    return replace(factors, blocks=blocks, num_outputs=1)


def _combined(block: Block, weights: Tensor) -> list[Block]:
    if isinstance(block, OuterBlock | LookupBlock):
        g = block.every_g() if isinstance(block, OuterBlock) else block.g
        return [replace(block, g=torch.einsum("nc,ncso->nso", weights, g).unsqueeze(1))]
    return [
        DenseBlock(weights.unsqueeze(1) @ block.columns(slot), slot)  # (N, 1, C) (N, C, p)
        for slot in block.slots
    ]
