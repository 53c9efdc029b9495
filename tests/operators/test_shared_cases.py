"""The operators over the shared table of networks, rebuilt as linear_operator rebuilds them."""

import pickle
import warnings

import pytest
import torch
from cases import CASES, names
from dense import dense_jacobian, relative_error

from lingp.linearization import LinearizedNetwork
from lingp.operators import GGNLinearOperator, NTKLinearOperator

N = 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", names())
def test_ntk_and_ggn(name, dtype):
    net, x = CASES[name].network(dtype), CASES[name].inputs(N, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parameters that go through the fallback are named
        linearized = LinearizedNetwork(net)
        factors = linearized.factors(x)[1]
    j = dense_jacobian(net, x, linearized.parameter_names).flatten(0, 1)
    variances = torch.linspace(0.5, 2.0, len(factors.slices), dtype=torch.float64)
    sizes = torch.tensor([s.stop - s.start for s in factors.slices])
    dense = j * variances.repeat_interleave(sizes) @ j.mT
    c, tolerance = factors.num_outputs, 1e-10 if dtype == torch.float64 else 1e-4
    v = torch.randn(len(dense), 2, generator=torch.Generator().manual_seed(0)).double()
    rows = slice(c, 3 * c)

    ntk = NTKLinearOperator.from_factors(factors, None, variances.to(dtype))
    rebuilt = ntk.representation_tree()(*ntk.representation())
    for op in (ntk, rebuilt, pickle.loads(pickle.dumps(ntk)), ntk.clone()):
        assert relative_error(op.to_dense(), dense) < tolerance
    assert relative_error(ntk @ v.to(dtype), dense @ v) < tolerance
    assert relative_error(ntk.diagonal(), dense.diagonal()) < tolerance
    assert relative_error(ntk[rows, rows].to_dense(), dense[rows, rows]) < tolerance
    assert relative_error(ntk.double().to_dense(), dense) < tolerance

    root = torch.randn(N, c, 2, generator=torch.Generator().manual_seed(1)).double()
    half = j.mT @ torch.block_diag(*root)
    ggn = GGNLinearOperator.from_factors(factors, root.to(dtype))
    weights = torch.randn(len(half), 2, generator=torch.Generator().manual_seed(2)).double()
    assert relative_error(ggn @ weights.to(dtype), half @ (half.mT @ weights)) < tolerance
    assert relative_error(ggn.diagonal(), half.square().sum(1)) < tolerance
