"""The covariance of the whitened weights, written down: what it is asked for, against dense."""

import pytest
import torch
from torch import nn

from lingp import LinearizedGP
from lingp.inference import FunctionSpace, RoundingWarning, WeightSpace
from lingp.likelihoods import Gaussian

F64 = torch.float64


def posterior(space, precision=2.0, rows=4):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.linspace(-1, 1, rows, dtype=F64).unsqueeze(1)
    gp = LinearizedGP(net, Gaussian(0.1), prior=precision).fit(x, x.sin(), progress=False)
    laplace = gp.laplace
    with torch.no_grad():
        return space(laplace.training, laplace.prior, laplace.curvature_root())


@pytest.mark.parametrize("rows", [4, 30])
@pytest.mark.parametrize("space", [WeightSpace, FunctionSpace])
def test_parts_are_those_of_the_matrix(space, rows):
    found = posterior(space, rows=rows)
    weights = found.weight_covariance(10_000)
    eye = torch.eye(10, dtype=F64)
    phi = found.whitened_product(eye).flatten(0, 1)
    dense = torch.linalg.inv(eye + phi.mT @ phi)
    torch.testing.assert_close(weights.matmul(eye), dense)
    torch.testing.assert_close(weights.matmul(eye[0]), dense[0])
    torch.testing.assert_close(weights.diagonal(), dense.diagonal())
    group = torch.tensor([7, 2])
    torch.testing.assert_close(weights.rows(group), dense[group])
    groups = torch.tensor([[7, 2], [0, 1]])
    torch.testing.assert_close(weights.blocks(groups)[1], dense[:2, :2])

    # once some weights are known, the others have the posterior of a model without them
    rest = torch.tensor([0, 1, 3, 4, 5, 6, 8, 9])
    without = torch.linalg.inv(eye[:8, :8] + phi[:, rest].mT @ phi[:, rest])
    given = weights.given(group)
    torch.testing.assert_close(given.matmul(eye)[rest[:, None], rest], without)
    assert bool((given.rows(rest)[:, group] == 0).all())
    twice = weights.given(group[:1]).given(group[1:])
    torch.testing.assert_close(twice.matmul(eye)[rest[:, None], rest], without)
    assert weights.double().columns.dtype == F64


@pytest.mark.filterwarnings("ignore", category=RoundingWarning)
def test_past_the_rounding_limit_nothing_cancels():
    found = posterior(FunctionSpace, precision=1e-14)
    assert found.factorization.from_qr
    weights = found.weight_covariance(100)
    assert bool((weights.diagonal() > 0).all())
    expected = posterior(WeightSpace, precision=1e-14).weight_covariance(100)
    torch.testing.assert_close(weights.diagonal(), expected.diagonal(), rtol=1e-6, atol=1e-12)
    assert found.weight_covariance(99) is None
