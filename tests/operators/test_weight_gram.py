"""Jᵀ Λ J and J_n S J_nᵀ equal dense products, by sums over outputs, by columns and mixed."""

import functools
import warnings
from dataclasses import replace

import pytest
import torch
from cases import CASES, names
from torch import nn

from lingp.inference import TrainingSet
from lingp.linearization import LinearizedNetwork
from lingp.linearization.blocks import DenseBlock
from lingp.operators import RowBlocks, WeightGram, row_flops, weight_gram

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
WAYS = ["chosen", "sums", "columns"]


@functools.cache
def factors_of(name, dtype=torch.float64):
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LinearizedNetwork(case.network(dtype)).factors(case.inputs(5, dtype, 0))[1]


def symmetric(*shape, seed, dtype=torch.float64):
    """Indefinite: neither operation takes a root."""
    half = torch.randn(*shape, shape[-1], generator=torch.Generator().manual_seed(seed))
    return (half + half.mT).to(dtype)


def force(monkeypatch, way):
    """All pairs of layers that can be, or none, by sums over outputs."""
    ways = {"sums": lambda pair: pair.left.outer and pair.right.outer, "columns": lambda _: False}
    if way in ways:
        monkeypatch.setattr(weight_gram._Pair, "by_sums", property(ways[way]))


def close(got, expected):
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    assert float((got - expected).norm()) <= TOLERANCE[got.dtype] * float(expected.norm())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", names())
def test_equal_dense_products(name, dtype, way, monkeypatch):
    force(monkeypatch, way)
    factors = factors_of(name, dtype)
    jacobian, num_outputs = factors.jacobian(), factors.num_outputs
    curvature = symmetric(5, num_outputs, seed=1, dtype=dtype)
    matrix = symmetric(factors.num_parameters, seed=2, dtype=dtype)
    total = WeightGram(factors.num_parameters)
    total.add(factors, curvature)
    close(total.pop(like=jacobian), (jacobian.mT @ curvature @ jacobian).sum(0))
    close(RowBlocks(matrix).of(factors), jacobian @ matrix @ jacobian.mT)


@pytest.mark.parametrize("way", WAYS)
def test_batches_and_pieces_add_up(way, monkeypatch):
    force(monkeypatch, way)
    net = nn.Sequential(
        nn.Linear(3, 9), nn.GELU(), nn.Linear(9, 8), nn.LayerNorm(8), nn.Linear(8, 4)
    )
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    factors = LinearizedNetwork(net.double()).factors(x)[1]
    jacobian, num_parameters = factors.jacobian(), factors.num_parameters
    total = WeightGram(num_parameters, piece_bytes=1)  # one row at a time
    for _ in range(2):  # the second time from 0 again
        total.add(factors.rows(slice(0, 3)))
        total.add(factors.rows(slice(3, 7)))
        close(total.pop(like=jacobian), (jacobian.mT @ jacobian).sum(0))
    matrix = symmetric(num_parameters, seed=2)
    blocks = RowBlocks(matrix, piece_bytes=1)
    parts = [blocks.of(factors.rows(rows)) for rows in (slice(0, 3), slice(3, 7))]
    close(torch.cat(parts), jacobian @ matrix @ jacobian.mT)


def test_batches_whose_layers_are_kept_in_different_ways():
    """A layer may be written out for short sequences and kept as factors for long ones."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    factors = LinearizedNetwork(net).factors(x)[1]
    jacobian, (first, *others) = factors.jacobian(), factors.blocks
    written = [DenseBlock(first.columns(slot), slot) for slot in first.slots]
    total, blocks = (
        WeightGram(factors.num_parameters),
        RowBlocks(torch.eye(jacobian.shape[-1]).double()),
    )
    for batch in (factors, replace(factors, blocks=(*written, *others))):
        total.add(batch)
        close(blocks.of(batch), jacobian @ jacobian.mT)
    close(total.pop(like=jacobian), 2 * (jacobian.mT @ jacobian).sum(0))


def test_many_outputs_are_summed_over_first():
    """Of ten outputs and layers of 50 all pairs of hidden layers; of a linear model none."""
    hidden = weight_gram._Layer((), 50, 51, False, True)
    assert weight_gram._Pair(hidden, hidden, 10).by_sums
    assert weight_gram._Pair(hidden, hidden, 1).by_sums  # a quarter of the products, not a half
    linear = weight_gram._Layer((), 1, 1000, False, True)
    assert not weight_gram._Pair(linear, linear, 1).by_sums


def test_flops_of_a_row():
    """Half of the matrix: as columns C times; by sums a layer with itself half of that."""
    net = nn.Sequential(nn.Linear(9, 9, bias=False), nn.Linear(9, 2, bias=False)).double()
    factors = LinearizedNetwork(net).factors(torch.ones(1, 9, dtype=torch.float64))[1]
    wide, last = 81, 18
    cases = {"sums": wide**2 / 2 + 2 * wide * last + last**2 / 2}
    cases["columns"] = 2 * (wide**2 + 2 * wide * last + last**2)
    for way, expected in cases.items():
        with pytest.MonkeyPatch.context() as patch:
            force(patch, way)
            assert row_flops(factors) == expected


@pytest.mark.parametrize("keep_bytes", [1 << 30, 0])
def test_differentiable_in_the_curvature(keep_bytes):
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batches = [(part, torch.zeros(len(part)), None) for part in x.split(4)]
    training = TrainingSet.collect(
        LinearizedNetwork(net), batches, keep_bytes=keep_bytes, progress=False
    )
    curvature = symmetric(6, 3, seed=1).requires_grad_()
    weights = symmetric(training.num_parameters, seed=2)
    assert torch.autograd.gradcheck(
        lambda given: (training.ggn(0.5 * (given + given.mT)) * weights).sum(), curvature
    )
    assert torch.autograd.gradgradcheck(
        lambda given: training.ggn(0.5 * (given + given.mT)).square().sum(), curvature
    )
    matrix = (0.1 * weights).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda given: training.row_blocks(0.5 * (given + given.mT)).square().sum(), matrix
    )


def test_nothing_added_is_zero():
    total = WeightGram(3)
    like = torch.zeros(1, dtype=torch.float32)
    assert torch.equal(total.pop(like), torch.zeros(3, 3))
