"""Combinations of the outputs: rows Σ_c w_nck J_nc of the Jacobian, still as layer factors."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from lingp.linearization import Factors
from lingp.linearization.blocks import Block, DenseBlock, LookupBlock, OuterBlock


def combine_outputs(factors: Factors, weights: Tensor) -> Factors:
    """Factors of the N·K rows Σ_c w_nck J_nc, with K outputs.

    Parameters
    ----------
    factors
        The factors of J (N·C x P).
    weights
        w, (N x C x K).
    """
    blocks = tuple(made for block in factors.blocks for made in _combined(block, weights))
    return replace(factors, blocks=blocks, num_outputs=weights.shape[2])


def _combined(block: Block, weights: Tensor) -> list[Block]:
    if isinstance(block, OuterBlock | LookupBlock):
        g = block.every_g() if isinstance(block, OuterBlock) else block.g
        return [replace(block, g=(weights.mT @ g.flatten(2)).unflatten(2, g.shape[2:]))]
    return [DenseBlock(weights.mT @ block.columns(slot), slot) for slot in block.slots]
