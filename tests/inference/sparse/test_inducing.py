"""Inducing points against the dense Jacobian's rows."""

import pytest
import torch
from laplace_cases import CASES, Case, dense_jacobian
from torch import Tensor

from lingp.inference.sparse.inducing import InducingPoints, points_at
from lingp.linearization import LinearizedNetwork

COLUMNS = {"inputs": None, "pairs": [7, 0, 3], "in order": [1, 2, 8]}


def build(case: Case, columns: list[int] | None, dtype: torch.dtype = torch.float64):
    """Points at training inputs, factors at test inputs, variances, and J_Z, J*, Σ0^{1/2}."""
    net, x, _, x_test = case.build(num_data=9)
    linearized = LinearizedNetwork(net, dtype=dtype)
    index = None if columns is None else torch.tensor(columns)
    points = points_at(linearized, x.to(dtype), index)
    _, factors = linearized.factors(x_test.to(dtype))
    sizes = torch.tensor([p.numel() for p in net.parameters()])
    variances = torch.linspace(0.3, 2, len(sizes), dtype=torch.float64)
    rows = dense_jacobian(net, x)
    rows = rows if columns is None else rows[columns]
    scale = variances.repeat_interleave(sizes).sqrt()
    return points, factors, variances, rows, dense_jacobian(net, x_test), scale


def close(actual: Tensor, expected: Tensor) -> None:
    """Equal but for the rounding of sums of about a hundred terms."""
    tolerance = 50 * torch.finfo(actual.dtype).eps * float(expected.abs().max())
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_kernels_and_products(case, columns, dtype):
    points, factors, variances, rows, rows_test, scale = build(case, columns, dtype)
    whitened, count = rows * scale, len(rows)
    assert points.num_points == count
    assert points.num_inputs == 9
    generator = torch.Generator().manual_seed(0)
    e = torch.randn(len(scale), 2, generator=generator, dtype=torch.float64)
    b = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    given, root = variances.to(dtype), scale.to(dtype)
    kernel = points.kernel(given)
    assert torch.equal(kernel, kernel.mT)
    close(kernel, whitened @ whitened.mT)
    close(points.cross(factors, given), (rows_test * scale) @ whitened.mT)
    close(points.apply(e.to(dtype), root), whitened @ e)
    close(points.apply_t(b.to(dtype), root), whitened.mT @ b)


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_derivatives(columns):
    points, factors, variances, rows, _, scale = build(CASES[3], columns)
    variances.requires_grad_()
    scale.requires_grad_()
    e = torch.linspace(-1, 1, len(scale), dtype=torch.float64).unsqueeze(-1).requires_grad_()
    b = torch.linspace(-1, 1, len(rows), dtype=torch.float64).unsqueeze(-1).requires_grad_()
    assert torch.autograd.gradcheck(points.kernel, (variances,))
    assert torch.autograd.gradcheck(lambda v: points.cross(factors, v), (variances,))
    assert torch.autograd.gradcheck(points.apply, (e, scale))
    assert torch.autograd.gradcheck(points.apply_t, (b, scale))


def test_a_row_that_is_there_twice_counts_twice():
    points, _, _, rows, _, scale = build(CASES[1], [2, 5, 2])
    b = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    close(points.apply_t(b, scale), (rows * scale).mT @ b)
    kernel = points.kernel(torch.linspace(0.3, 2, 4, dtype=torch.float64))
    close(kernel, (rows * scale) @ (rows * scale).mT)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (torch.tensor([0, 27]), "columns: got numbers from 0 to 27; expected 0 to 26"),
        (torch.tensor([-1, 3]), "columns: got numbers from -1"),
        (torch.tensor([0.0, 1.0]), "columns: got torch.float32"),
        (torch.tensor([[0, 1]]), r"columns: got torch.int64 of shape \(1, 2\)"),
        (torch.tensor([], dtype=torch.long), r"columns: got torch.int64 of shape \(0,\)"),
    ],
)
def test_columns_that_are_no_rows_are_refused(columns, message):
    points = build(CASES[1], None)[0]
    with pytest.raises(ValueError, match=message):
        InducingPoints(points.factors, columns)
