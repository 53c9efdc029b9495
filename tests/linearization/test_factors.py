"""Layer factors equal the dense Jacobian, for every network of the shared table."""

import warnings
from fnmatch import fnmatchcase

import pytest
import torch
from cases import CASES, names
from dense import dense_jacobian, relative_error

from lingp.linearization import Factors, LinearizedNetwork
from lingp.linearization.fallback import Fallback
from lingp.linearization.inputs import map_inputs

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
ROWS = 4


def made(name, dtype=torch.float64, rows=ROWS, **options):
    """A case's linearisation, its inputs, outputs, factors and dense Jacobian."""
    case = CASES[name]
    x = case.inputs(rows, dtype)
    lin = LinearizedNetwork(case.network(dtype), **options)
    with warnings.catch_warnings():
        if "warns" in case.groups or "same" in name:
            warnings.simplefilter("ignore")
        else:
            warnings.simplefilter("error")
        outputs, factors = lin.factors(x)
    return lin, x, outputs, factors


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", names())
def test_jacobian_and_products_equal_the_dense_jacobian(name, dtype):
    lin, x, outputs, factors = made(name, dtype)
    expected = dense_jacobian(CASES[name].network(dtype), x)
    num_data, num_outputs, num_weights = expected.shape
    assert (
        factors.shape
        == (num_data * num_outputs, num_weights)
        == (ROWS * num_outputs, lin.num_parameters)
    )
    assert factors.dtype == outputs.dtype == dtype

    assert relative_error(factors.jacobian(), expected) < TOLERANCE[dtype]
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(num_weights, 3, generator=generator, dtype=torch.float64)
    u = torch.randn(num_data, num_outputs, 2, generator=generator, dtype=torch.float64)
    # in float32 the products' own rounding is measured against |J| |v|, not against what cancels
    size = (
        1.0
        if dtype == torch.float64
        else float(expected.abs().norm() * v.norm() / (expected @ v).norm())
    )
    assert relative_error(factors.matmul(v.to(dtype)), expected @ v) < TOLERANCE[dtype] * size
    product = torch.einsum("ncp,nck->pk", expected, u)
    assert relative_error(factors.t_matmul(u.to(dtype)), product) < TOLERANCE[dtype] * max(
        1.0, float(expected.norm() * u.norm() / product.norm()) if dtype == torch.float32 else 1.0
    )


@pytest.mark.parametrize("name", names())
def test_outputs_are_the_networks(name):
    lin, x, outputs, factors = made(name)
    net = CASES[name].network()
    with torch.no_grad():
        from lingp.linearization.inputs import call_network

        expected = call_network(net, x)
    torch.testing.assert_close(outputs, expected.reshape(ROWS, -1))
    torch.testing.assert_close(lin(x), outputs)
    assert lin.output_shape == expected.shape[1:]
    assert lin.num_outputs == factors.num_outputs == outputs.shape[1]


@pytest.mark.parametrize("name", names())
def test_rules_cover_what_they_should(name):
    """A rule that is lost is exact still, and slow: only this test notices."""
    lin, *_ = made(name)
    (plan,) = lin._plans.values()
    expected = {
        n for n in lin.parameter_names if any(fnmatchcase(n, p) for p in CASES[name].fallback)
    }
    assert set(plan.fallback.names if plan.fallback else ()) == expected
    used = set(lin.parameter_names) - {n for n in lin.parameter_names if "unused" in n}
    assert plan.structured == used - expected


@pytest.mark.parametrize("name", names())
def test_structured_equals_fallback(name):
    lin, x, _, factors = made(name)
    alone = Fallback(lin.parameter_names)
    with lin.watching(_no_capture()) as network:
        if "warns" in CASES[name].groups:  # vmap over a checkpoint is not defined
            alone.mapped = False
        found = alone(network, x, False)
    dense = torch.cat([found[n].detach() for n in lin.parameter_names], 2)
    assert relative_error(factors.jacobian(), dense) < 1e-10


def _no_capture():
    from lingp.linearization.capture import Capture

    return Capture({})


@pytest.mark.parametrize(
    "name", names("basic", "convolution", "shared", "folded", "recurrent", "inputs")
)
def test_batches_do_not_change_the_result(name):
    lin, x, outputs, factors = made(name, rows=5)
    small = LinearizedNetwork(CASES[name].network(), memory_budget=1)
    in_pieces, pieces = small.factors(x)
    torch.testing.assert_close(in_pieces, outputs)
    assert relative_error(pieces.jacobian(), factors.jacobian()) < 1e-12
    uneven = LinearizedNetwork(CASES[name].network())
    parts = [
        uneven.factors(map_inputs(lambda t, s=s: t[s], x))[1] for s in (slice(0, 3), slice(3, 5))
    ]
    whole = Factors.cat(parts)
    assert whole.num_data == 5
    assert relative_error(whole.jacobian(), factors.jacobian()) < 1e-12
    v = torch.ones(lin.num_parameters, 1, dtype=torch.float64)
    torch.testing.assert_close(whole.matmul(v), factors.matmul(v))


@pytest.mark.parametrize("name", names("basic", "shared", "folded"))
def test_rows(name):
    *_, factors = made(name)
    dense = factors.jacobian()
    for index in (slice(1, 3), slice(None, None, 2), torch.tensor([2, 0, 2]), torch.tensor([3])):
        part = factors.rows(index)
        torch.testing.assert_close(part.jacobian(), dense[index])
        assert part.num_data == len(dense[index])
    mask = torch.tensor([True, False, False, True])
    torch.testing.assert_close(factors.rows(mask).jacobian(), dense[mask])
    again = Factors.cat([factors.rows(torch.tensor([1])), factors.rows(torch.tensor([0, 3]))])
    torch.testing.assert_close(again.jacobian(), dense[[1, 0, 3]])


@pytest.mark.parametrize("name", names())
def test_one_row(name):
    """Code that squeezes or expands treats a single row in its own way."""
    _, x, outputs, factors = made(name)
    lin = LinearizedNetwork(CASES[name].network())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone, one = lin.factors(map_inputs(lambda t: t[2:3], x))
    torch.testing.assert_close(alone, outputs[2:3])
    assert relative_error(one.jacobian(), factors.jacobian()[2:3]) < 1e-10


def test_dtype_conversion():
    *_, factors = made("embedding")
    single = factors.to(torch.float32)
    assert single.dtype == torch.float32
    assert all(t.dtype in (torch.float32, torch.int64) for t in single.tensors())
    assert relative_error(single.jacobian(), factors.jacobian()) < 1e-6
    assert factors.to(device="cpu").device == torch.device("cpu")


def test_equal_rows_have_equal_factors():
    case = CASES["convolutional network"]
    x = case.inputs(1).expand(4, -1, -1, -1)
    _, factors = LinearizedNetwork(case.network()).factors(x)
    dense = dense_jacobian(case.network(), x)
    assert relative_error(factors.jacobian(), dense) < 1e-10


def test_a_thousand_rows_agree_with_few():
    case = CASES["mlp"]
    lin = LinearizedNetwork(case.network(), memory_budget=10_000)
    x = case.inputs(1000)
    _, factors = lin.factors(x)
    chosen = torch.tensor([0, 499, 999])
    assert (
        relative_error(factors.rows(chosen).jacobian(), dense_jacobian(case.network(), x[chosen]))
        < 1e-10
    )
