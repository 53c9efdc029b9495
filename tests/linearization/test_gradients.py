"""Derivatives of factors, kernels and outputs in the inputs, against finite differences."""

import pytest
import torch
from cases import CASES
from torch.autograd.gradcheck import gradcheck

from lingp.linearization import LinearizedNetwork
from lingp.operators import diagonal_blocks, gram

SMOOTH = [
    "mlp",
    "mlp one output",
    "linear on sequences",
    "bilinear",
    "Conv2d stride 2, padding 1"
    if "Conv2d stride 2, padding 1" in CASES
    else "Conv2d padding valid",
    "Conv2d groups 2, stride 2",
    "ConvTranspose1d plain",
    "ConvTranspose3d stride 2, output_padding (1, 0, 1), groups 2",
    "LayerNorm on sequences",
    "RMSNorm",
    "GroupNorm on images",
    "InstanceNorm1d",
    "BatchNorm2d",
    "attention self",
    "attention cross, time first",
    "encoder norm first",
    "recurrence by hand",
    "recurrent cell",
    "layer used twice",
    "tied autoencoder",
    "weight norm",
    "bare parameters",
    "class token",
    "in-place gain and shift",
    "einsum",
    "bag with sample weights",
    "time folded in rows",
    "rows folded in time",
    "matrix products",
    "image output",
]


def differentiable_inputs(name, rows=2):
    x = CASES[name].inputs(rows)
    tensors = list(x) if isinstance(x, tuple) else [x]
    places = [i for i, t in enumerate(tensors) if t.is_floating_point()]

    def assemble(*values):
        full = list(tensors)
        for i, value in zip(places, values, strict=True):
            full[i] = value
        return tuple(full) if isinstance(x, tuple) else full[0]

    return assemble, [tensors[i].requires_grad_() for i in places]


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_in_x(name):
    lin = LinearizedNetwork(CASES[name].network())
    assemble, leaves = differentiable_inputs(name)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    _, factors = lin.factors(assemble(*leaves))
    v, u = draw(factors.num_parameters, 1), draw(factors.num_data, factors.num_outputs, 1)
    weights = draw(*[factors.shape[0]] * 2)
    variances = torch.rand(len(factors.slices), generator=generator, dtype=torch.float64)

    def scalars(*values):
        outputs, factors = lin.factors(assemble(*values))
        return (
            outputs.sum(),
            (factors.matmul(v) * u).sum(),
            (factors.t_matmul(u) * v).sum(),
            (gram(factors, variances=variances) * weights).sum(),
            diagonal_blocks(factors, variances).sum(),
        )

    assert gradcheck(scalars, leaves, fast_mode=True, rtol=1e-4, atol=1e-5)


def test_outputs_and_factors_carry_the_same_graph():
    lin = LinearizedNetwork(CASES["mlp"].network(), memory_budget=1)
    x = CASES["mlp"].inputs(3).requires_grad_()
    outputs, factors = lin.factors(x)
    (g,) = torch.autograd.grad(outputs.sum(), x)
    (expected,) = torch.autograd.grad(lin(x).sum(), x)
    torch.testing.assert_close(g, expected)
    assert factors.jacobian().requires_grad


def test_no_graph_unless_asked_for():
    lin = LinearizedNetwork(CASES["mlp"].network())
    x = CASES["mlp"].inputs(3)
    assert not lin(x).requires_grad
    assert not lin.factors(x)[1].jacobian().requires_grad
    with torch.no_grad():
        outputs, factors = lin.factors(x.requires_grad_())
    assert not outputs.requires_grad
    assert not factors.jacobian().requires_grad
