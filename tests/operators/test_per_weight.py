"""Kernels with one variance per weight equal dense products, and keep layers in factors."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from cases import CASES, names
from torch.utils._python_dispatch import TorchDispatchMode

from lingp.linearization import LinearizedNetwork
from lingp.operators import contractions, diagonal_blocks, gram, panels, per_weight, tiles
from lingp.operators.ntk import NTKLinearOperator
from lingp.priors import Diagonal, UnitWise

KINDS = {
    "inputs": lambda: UnitWise(units="inputs"),
    "outputs": lambda: UnitWise(units="outputs"),
    "diagonal": Diagonal,
}


@functools.cache
def network(name, dtype=torch.float64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LinearizedNetwork(CASES[name].network(dtype))


@functools.cache
def factors_of(name, rows=4, dtype=torch.float64, seed=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return network(name, dtype).factors(CASES[name].inputs(rows, dtype, seed))[1]


def variances_of(name, kind, dtype=torch.float64):
    prior = KINDS[kind]().bind_to(network(name, dtype))
    generator = torch.Generator().manual_seed(3)
    prior.precision = 0.3 + torch.rand(prior.num_groups, generator=generator, dtype=torch.float64)
    return prior.variances().detach().to(dtype)


def dense_kernel(a, b, v):
    left, right = (f.jacobian().double().flatten(0, 1) for f in (a, b))
    return (left * v.double()) @ right.T


def close(got, expected, tolerance):
    assert got.shape == expected.shape
    got, expected = got.detach().double(), expected.detach()
    assert float((got - expected).norm()) <= tolerance * float(expected.norm())


@pytest.fixture
def pieces(monkeypatch):
    monkeypatch.setattr(tiles, "_TILE_SCALARS", 16)
    monkeypatch.setattr(panels, "_PANEL_BYTES", 400)
    monkeypatch.setattr(panels, "_NARROW", 3)
    monkeypatch.setattr(per_weight, "_PIECE_SCALARS", 16)


@pytest.mark.parametrize("name", names())
def test_kernel_blocks_and_gradients(name):
    for kind in KINDS:
        check_against_dense(name, kind)


@pytest.mark.parametrize("name", names("basic", "convolution", "shared"))
@pytest.mark.usefixtures("pieces")
def test_small_pieces(name):
    for kind in KINDS:
        check_against_dense(name, kind)


def check_against_dense(name, kind):
    here, there = factors_of(name), factors_of(name, 3, seed=1)
    v = variances_of(name, kind).requires_grad_()
    outputs = here.num_outputs
    generator = torch.Generator().manual_seed(0)
    square = dense_kernel(here, here, v).view(4, outputs, 4, outputs)
    blocks = torch.stack([square[n, :, n] for n in range(4)])
    for got, expected in (
        (gram(here, variances=v), dense_kernel(here, here, v)),
        (gram(here, there, v), dense_kernel(here, there, v)),
        (diagonal_blocks(here, v), blocks),
    ):
        close(got, expected, 1e-11)
        weights = torch.randn(got.shape, generator=generator, dtype=torch.float64)
        (slope,) = torch.autograd.grad(got, v, weights)
        (wanted,) = torch.autograd.grad(expected, v, weights, retain_graph=True)
        close(slope, wanted, 1e-11)
    with torch.no_grad():
        kernel = gram(here, variances=v)
        assert torch.equal(kernel, kernel.T)
        close(diagonal_blocks(here, v), blocks, 1e-11)


@pytest.mark.parametrize("name", names("basic", "convolution"))
def test_single_precision(name):
    for kind in KINDS:
        factors, v = factors_of(name, 4, torch.float32), variances_of(name, kind, torch.float32)
        close(gram(factors, variances=v), dense_kernel(factors, factors, v), 1e-5)
        assert gram(factors, variances=v).dtype == torch.float32


@pytest.mark.parametrize("way", ["positions", "panels"])
@pytest.mark.parametrize("name", names("convolution", "shared"))
def test_every_way_to_contract(name, way, monkeypatch):
    monkeypatch.setattr(contractions, "_method", lambda a, b: way)
    for kind in KINDS:
        here, there, v = factors_of(name), factors_of(name, 3, seed=1), variances_of(name, kind)
        close(gram(here, variances=v), dense_kernel(here, here, v), 1e-11)
        close(gram(here, there, v), dense_kernel(here, there, v), 1e-11)


@pytest.mark.parametrize("name", ["mlp", "convolutional network", "embedding"])
def test_weights_without_variance(name):
    factors = factors_of(name)
    for kind in KINDS:
        v = variances_of(name, kind)
        v = torch.where(v > v.median(), 0.0, v)
        close(gram(factors, variances=v), dense_kernel(factors, factors, v), 1e-11)


@pytest.mark.parametrize("name", names("basic", "embedding"))
def test_equal_values_are_one_value_per_tensor(name):
    factors = factors_of(name)
    one = torch.full((len(factors.slices),), 0.7, dtype=torch.float64)
    every = torch.full((factors.num_parameters,), 0.7, dtype=torch.float64)
    assert torch.equal(gram(factors, variances=every), gram(factors, variances=one))
    close(diagonal_blocks(factors, every), diagonal_blocks(factors, one), 1e-14)


class Largest(TorchDispatchMode):
    """Size of the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numel = max(self.numel, out.numel())
        return out


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_units_keep_wide_layers_in_factors(kind):
    """No columns of the Jacobian: nothing is as large as a layer's weight times the rows."""
    net = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Tanh(), torch.nn.Linear(50, 2))
    linearized = LinearizedNetwork(net.double())
    factors = linearized.factors(torch.randn(30, 40, dtype=torch.float64))[1]
    prior = KINDS[kind]().bind_to(linearized)
    prior.precision = torch.linspace(0.5, 2, prior.num_groups)
    v = prior.variances().detach()
    with Largest() as made:
        kernel = gram(factors, variances=v)
    assert made.numel <= 60 * 60 + 60 * 52
    close(kernel, dense_kernel(factors, factors, v), 1e-12)


def test_gradients_reach_the_factors():
    name = "mlp"
    x = CASES[name].inputs(4, torch.float64, 0).requires_grad_()
    v = variances_of(name, "diagonal").requires_grad_()
    slopes = []
    for kernel in (gram, lambda f, variances: dense_kernel(f, f, variances)):
        factors = network(name).factors(x)[1]
        value = kernel(factors, variances=v).square().sum()
        slopes.append(torch.autograd.grad(value, (x, v)))
    for got, expected in zip(*slopes, strict=True):
        close(got, expected, 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_operator(kind):
    name = "mlp"
    here, there, v = factors_of(name), factors_of(name, 3, seed=1), variances_of(name, kind)
    generator = torch.Generator().manual_seed(0)
    for other, expected in (
        (None, dense_kernel(here, here, v)),
        (there, dense_kernel(here, there, v)),
    ):
        operator = NTKLinearOperator.from_factors(here, other, v)
        right = torch.randn(expected.shape[1], 2, generator=generator, dtype=torch.float64)
        close(operator._matmul(right[:, :1]), expected @ right[:, :1], 1e-11)
        close(operator @ right, expected @ right, 1e-11)
        close(operator.to_dense(), expected, 1e-11)
        close((operator * 2.0).to_dense(), 2 * expected, 1e-11)
        close(operator[1:3, :2].to_dense(), expected[1:3, :2], 1e-11)
    close(
        NTKLinearOperator.from_factors(here, None, v).diagonal(),
        gram(here, variances=v).diag(),
        1e-11,
    )


def test_another_number_of_variances_is_refused():
    factors = factors_of("mlp")
    size = factors.num_parameters
    with pytest.raises(ValueError, match=rf"variances: got shape .*one per parameter.*\({size},\)"):
        gram(factors, variances=torch.ones(size + 1, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", names("basic", "convolution", "shared"))
@pytest.mark.usefixtures("pieces")
def test_gradients_of_groups(name, kind):
    """With groups, sums over them are what they are without."""
    prior = KINDS[kind]().bind_to(network(name))
    here, there = factors_of(name), factors_of(name, 3, seed=1)
    v = variances_of(name, kind).requires_grad_()
    for other in (None, there):
        slopes = []
        for groups in (None, prior.group):
            kernel = gram(here, other, v, groups)
            weights = torch.linspace(-1, 2, kernel.numel(), dtype=torch.float64).view_as(kernel)
            (slope,) = torch.autograd.grad(kernel, v, weights)
            total = torch.zeros(prior.num_groups, dtype=torch.float64)
            slopes.append(total.index_add(0, prior.group, slope))
        close(slopes[1], slopes[0], 1e-11)
