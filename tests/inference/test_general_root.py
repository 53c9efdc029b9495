"""A curvature root that is a full, singular matrix per datum (as a softmax's is)."""

from __future__ import annotations

import pytest
import torch
from laplace_cases import CASES, dense_jacobian, make_laplace

from lingp.likelihoods import DenseRoot, Gaussian
from lingp.priors import Layerwise


@pytest.mark.parametrize("rank", ["square", "tall"])
@pytest.mark.parametrize("space", ["weight", "function"])
def test_singular_curvature_needs_no_special_case(space, rank):
    net, x, y, x_test = CASES[3].build()
    laplace = make_laplace(net, x, y, Layerwise(0.7), Gaussian(0.2), space)
    p = torch.softmax(net(x).detach(), -1)
    values = torch.diag_embed(p.sqrt()) - p.unsqueeze(-1) * p.sqrt().unsqueeze(-2)
    if rank == "tall":
        values = values[..., :2]
    values.requires_grad_()
    posterior = laplace.method(laplace.training, laplace.prior, DenseRoot(values))

    jacobian, jacobian_test = dense_jacobian(net, x), dense_jacobian(net, x_test)
    sizes = torch.tensor([q.numel() for q in net.parameters()])
    variances = laplace.prior.variances().repeat_interleave(sizes)
    curvature = torch.block_diag(*(values @ values.mT))
    ggn = jacobian.mT @ curvature @ jacobian
    log_det = torch.logdet(torch.diag(1 / variances) + ggn) + variances.log().sum()
    torch.testing.assert_close(posterior.log_determinant(), log_det, rtol=1e-9, atol=1e-9)
    parameters = [values, laplace.prior.raw_precision]
    actual = torch.autograd.grad(posterior.log_determinant(), parameters)
    for a, e in zip(actual, torch.autograd.grad(log_det, parameters), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-8, atol=1e-9)

    precision = torch.diag(1 / variances) + ggn
    expected = jacobian_test @ torch.linalg.solve(precision, jacobian_test.mT)
    _, factors = laplace.training.linearized.factors(x_test)
    torch.testing.assert_close(posterior.covariance(factors), expected, rtol=1e-8, atol=1e-9)

    z = torch.ones(len(x), values.shape[-1], dtype=torch.float64)
    right = variances.sqrt() * (jacobian.mT @ (values @ z.unsqueeze(-1)).reshape(-1))
    squared = variances.sqrt().unsqueeze(-1) * ggn * variances.sqrt()
    solved = torch.linalg.solve(squared + torch.eye(len(squared), dtype=torch.float64), right)
    torch.testing.assert_close(posterior.solve(z), solved, rtol=1e-8, atol=1e-9)
