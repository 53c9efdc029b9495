"""When to write a kernel down: products with it through its factors, or through the matrix.

A product through the factors takes 4·N·P flops per column; forming the matrix once takes about
N² Σ_l (I_l + C² O_l) and makes every later product 2·(N·C)² per column. Which is cheaper depends
on how many products are still to come, and nobody knows. So the flops of the products so far are
counted, and the matrix is formed once they would have paid for it: the work is then never more
than about twice what the better choice, known beforehand, would have taken.
"""

from __future__ import annotations

from lingp.linearization.blocks import Block, LookupBlock, OuterBlock
from lingp.linearization.factors import Factors

DENSE_BYTES = 1 << 30
"""Largest kernel matrix that products may form on their own."""


def product_flops(left: Factors, right: Factors, width: int) -> float:
    """Flops of J (J'ᵀ V) for V with `width` columns."""
    return float(sum(_half_product(f, width) for f in (left, right)))


def _half_product(factors: Factors, width: int) -> float:
    return float(sum(2 * _touched(block) * width for block in factors.blocks))


def _touched(block: Block) -> int:
    """Multiplications of one product of a block with one vector."""
    n, c = block.num_data, block.num_outputs
    if isinstance(block, OuterBlock):
        per_position = block.fan_in * block.fan_out + c * block.fan_out
        return n * block.num_positions * per_position
    if isinstance(block, LookupBlock):
        return n * c * block.index.shape[1] * block.fan_out
    return n * c * block.slots[0].size


def gram_flops(left: Factors, right: Factors | None, columnwise: bool = False) -> float:
    """Flops of forming the kernel: half of them when it is symmetric (`right` is None).

    `columnwise`: whether variances vary along both axes of matrices, which then take their columns.
    """
    other = left if right is None else right
    total = sum(_pair(a, columnwise) for a in left.blocks) * left.num_data * other.num_data
    return float(total) * (1 if right is None else 2)


def _pair(block: Block, columnwise: bool) -> int:
    """Multiplications for one pair of examples."""
    c = block.num_outputs
    if isinstance(block, OuterBlock):
        if block.num_positions == 1 and not columnwise:
            return block.fan_in + c * c * (0 if block.shared else block.fan_out)
        return c * c * block.fan_in * block.fan_out
    return c * c * block.slots[0].size


def matrix_pays(
    left: Factors, right: Factors | None, width: int, spent: float, columnwise: bool = False
) -> tuple[bool, float]:
    """Whether the next product, of `width` columns, should form the matrix; and the flops after it.

    `spent` are the flops that earlier products with this kernel took through the factors;
    `columnwise` as `gram_flops` takes it.
    """
    other = left if right is None else right
    size = left.shape[0] * other.shape[0] * left.dtype.itemsize
    total = spent + product_flops(left, other, width)
    return size <= DENSE_BYTES and total >= gram_flops(left, right, columnwise), total
