"""Kernels from layer factors equal dense products, by every way of contracting."""

import functools
import warnings

import pytest
import torch
from cases import CASES, Net, names
from torch import nn

from lingp.linearization import Factors, LinearizedNetwork, OuterBlock
from lingp.operators import contractions, diagonal_blocks, expand_variances, gram, panels, tiles

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}

WAYS = {
    "chosen": None,
    "positions": lambda a, b: "tiles" if a.num_positions == b.num_positions == 1 else "positions",
    "panels": lambda a, b: "tiles" if a.num_positions == b.num_positions == 1 else "panels",
    "panels only": lambda a, b: "panels",
    "positions only": lambda a, b: "positions",
}


@functools.cache
def factors_of(name, rows=4, dtype=torch.float64, seed=0):
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LinearizedNetwork(case.network(dtype)).factors(case.inputs(rows, dtype, seed))[1]


def variances_of(factors):
    return torch.linspace(0.3, 1.7, len(factors.slices), dtype=factors.dtype)


def dense_kernel(a, b, variances):
    left, right = (f.jacobian().double().flatten(0, 1) for f in (a, b))
    return (left * expand_variances(a, variances.double())) @ right.T


def close(got, expected, tolerance):
    assert got.shape == expected.shape
    got, expected = got.detach().double(), expected.detach()
    assert float((got - expected).norm()) <= tolerance * float(expected.norm())


@pytest.fixture(params=[False, True], ids=["large pieces", "small pieces"])
def pieces(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(tiles, "_TILE_SCALARS", 16)
        monkeypatch.setattr(panels, "_PANEL_BYTES", 400)
        monkeypatch.setattr(panels, "_NARROW", 3)


def force(monkeypatch, way):
    if WAYS[way] is not None:
        monkeypatch.setattr(contractions, "_method", WAYS[way])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", names())
def test_square_and_rectangular(name, dtype):
    here, there = factors_of(name, 4, dtype), factors_of(name, 3, dtype, seed=1)
    variances = variances_of(here)
    kernel = gram(here, variances=variances)
    close(kernel, dense_kernel(here, here, variances), TOLERANCE[dtype])
    assert torch.equal(kernel, kernel.T)
    close(gram(here, there, variances), dense_kernel(here, there, variances), TOLERANCE[dtype])
    close(gram(here), dense_kernel(here, here, torch.ones_like(variances)), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", names())
def test_diagonal_blocks(name, dtype):
    factors = factors_of(name, 4, dtype)
    variances = variances_of(factors)
    outputs = factors.num_outputs
    blocks = diagonal_blocks(factors, variances)
    kernel = dense_kernel(factors, factors, variances).view(4, outputs, 4, outputs)
    close(blocks, torch.stack([kernel[n, :, n] for n in range(4)]), TOLERANCE[dtype])
    close(
        diagonal_blocks(factors),
        diagonal_blocks(factors, torch.ones_like(variances)).double(),
        TOLERANCE[dtype],
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name",
    [
        *names("basic", "convolution", "shared", "folded"),
        "attention cross",
        "embedding",
        "bag mean",
    ],
)
@pytest.mark.usefixtures("pieces")
def test_every_way_to_contract(name, way, monkeypatch):
    force(monkeypatch, way)
    here, there = factors_of(name), factors_of(name, 3, seed=1)
    variances = variances_of(here).requires_grad_()
    for other in (None, there):
        kernel = gram(here, other, variances)
        expected = dense_kernel(here, here if other is None else other, variances)
        close(kernel, expected, 1e-10)
        weights = torch.randn(
            kernel.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        (got,) = torch.autograd.grad(kernel, variances, weights)
        (wanted,) = torch.autograd.grad(expected, variances, weights)
        close(got, wanted, 1e-10)


@pytest.mark.parametrize("name", names())
def test_gradients_in_variances(name):
    factors = factors_of(name)
    variances = variances_of(factors).requires_grad_()
    for function in (
        gram,
        lambda f, variances: gram(f, f.rows(slice(1, 3)), variances),
        diagonal_blocks,
    ):
        result = function(factors, variances=variances)
        weights = torch.randn(
            result.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        (got,) = torch.autograd.grad(result, variances, weights)
        # the kernel is linear in the variances: one part for each parameter tensor
        parts = torch.stack(
            [
                (function(factors, variances=unit) * weights).sum()
                for unit in torch.eye(len(variances), dtype=torch.float64)
            ]
        )
        assert float((got - parts).abs().max()) <= 1e-10 * float(
            result.detach().norm() * weights.norm()
        )


def test_both_sides_may_be_the_same_object():
    factors = factors_of("mlp")
    close(gram(factors, factors), gram(factors), 1e-14)


@pytest.mark.parametrize("name", ["mlp", "encoder", "embedding", "convolutional network"])
def test_one_row_against_many(name):
    factors = factors_of(name, 5)
    one = factors.rows(slice(2, 3))
    kernel, outputs = gram(factors), factors.num_outputs
    rows = slice(2 * outputs, 3 * outputs)
    close(gram(one, factors), kernel[rows], 1e-12)
    close(gram(factors, one), kernel[:, rows], 1e-12)
    close(gram(one), kernel[rows, rows], 1e-12)


@pytest.mark.parametrize("lengths", [(6, 60), (60, 6), (6, 7)])
def test_inputs_of_different_lengths(lengths):
    """Short and long inputs may give different blocks of the same layer."""
    torch.manual_seed(0)
    net = Net(
        lambda s, x: s.o(s.c(x).tanh().mean(2)), c=nn.Conv1d(8, 3, 5), o=nn.Linear(3, 2)
    ).double()
    lin = LinearizedNetwork(net)
    here, there = (lin.factors(torch.randn(3, 8, n, dtype=torch.float64))[1] for n in lengths)
    variances = variances_of(here).requires_grad_()
    kernel, expected = gram(here, there, variances), dense_kernel(here, there, variances)
    close(kernel, expected, 1e-10)
    (got,) = torch.autograd.grad(kernel.square().sum(), variances)
    (wanted,) = torch.autograd.grad(expected.square().sum(), variances)
    close(got, wanted, 1e-10)
    both = Factors.cat([here, there])
    close(both.jacobian(), torch.cat([here.jacobian(), there.jacobian()]), 1e-14)
    close(gram(both), dense_kernel(both, both, torch.ones_like(variances)), 1e-10)


def test_expand_variances():
    factors = factors_of("mlp")
    variances = variances_of(factors).requires_grad_()
    expanded = expand_variances(factors, variances)
    for value, columns in zip(variances, factors.slices, strict=True):
        assert (expanded[columns] == value).all()
    (g,) = torch.autograd.grad(expanded.sum(), variances)
    assert g.tolist() == [s.stop - s.start for s in factors.slices]


def test_last_layers_share_their_gradients():
    """The gradient in a final linear layer is the same for every example, and is kept once."""
    factors = factors_of("mlp", 6)
    last = factors.blocks[-1]
    assert isinstance(last, OuterBlock)
    assert last.shared
    assert last.g.numel() == factors.num_outputs**2
    cat = Factors.cat([factors, factors.rows(slice(0, 2))])
    assert cat.blocks[-1].shared


def test_networks_that_do_not_fit_are_refused():
    mlp, embedding = factors_of("mlp"), factors_of("embedding")
    with pytest.raises(ValueError, match="expected those of `factors`"):
        gram(mlp, embedding)
    with pytest.raises(ValueError, match="one per parameter tensor"):
        gram(mlp, variances=torch.ones(2, dtype=torch.float64))


def test_kernels_of_outputs_that_depend_on_nothing():
    net = Net(lambda s, x: 2 * x + 0 * s.a(x), a=nn.Linear(3, 3)).double()
    _, factors = LinearizedNetwork(net).factors(torch.randn(4, 3, dtype=torch.float64))
    assert gram(factors).shape == (12, 12)
    assert not gram(factors).any()
    assert not diagonal_blocks(factors).any()
    variances = torch.ones(2, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(gram(factors, variances=variances).sum(), variances)
    assert not g.any()
