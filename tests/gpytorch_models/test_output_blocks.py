"""The C x C blocks of a covariance, from every kind of operator."""

import pytest
import torch
from linear_operator.operators import (
    DenseLinearOperator,
    DiagLinearOperator,
    MatmulLinearOperator,
    SumLinearOperator,
)
from torch import nn
from torch.testing import assert_close

from lingp.gpytorch_models import NTKernel
from lingp.gpytorch_models.likelihood import output_blocks
from lingp.operators.exact import ExactSumLinearOperator

DATA, OUTPUTS = 4, 3
ROWS = DATA * OUTPUTS


def make(kind):
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, ROWS, 5, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, OUTPUTS)).double()
    kernel = NTKernel.from_model(net)(left[:DATA, :2])  # lazy
    product = MatmulLinearOperator(left, right.mT)
    return {
        "kernel": kernel,
        "dense": DenseLinearOperator(left @ left.mT),
        "diagonal": DiagLinearOperator(left[:, 0]),
        "product": product,
        "sum": SumLinearOperator(kernel, product),
        "exact sum": ExactSumLinearOperator(kernel.evaluate_kernel(), product),
        "batch": DenseLinearOperator(torch.stack([left @ left.mT, right @ right.mT])),
        "batch of products": MatmulLinearOperator(torch.stack([left, right]), right.mT),
        "sum over a batch": SumLinearOperator(
            product, DenseLinearOperator(torch.stack([left @ left.mT, right @ right.mT]))
        ),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "kernel",
        "dense",
        "diagonal",
        "product",
        "sum",
        "exact sum",
        "batch",
        "batch of products",
        "sum over a batch",
    ],
)
def test_blocks(kind):
    operator = make(kind)
    dense = operator.to_dense()
    grid = dense.reshape(*dense.shape[:-2], DATA, OUTPUTS, DATA, OUTPUTS)
    expected = torch.stack([grid[..., n, :, n, :] for n in range(DATA)], -3)
    assert_close(output_blocks(operator, OUTPUTS), expected)


@pytest.mark.parametrize("kind", ["kernel", "sum", "product"])
def test_the_matrix_is_not_formed(kind, monkeypatch):
    operator = make(kind)
    for other in ("NTKLinearOperator", "SumLinearOperator", "MatmulLinearOperator"):
        for cls in [c for c in _classes(operator.evaluate_kernel()) if c.__name__ == other]:
            monkeypatch.setattr(cls, "to_dense", None)
    assert output_blocks(operator, OUTPUTS).shape == (DATA, OUTPUTS, OUTPUTS)


def _classes(operator):
    parts = getattr(operator, "linear_ops", ())
    return {type(operator), *(type(part.evaluate_kernel()) for part in parts)}
