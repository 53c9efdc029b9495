"""Sparse posteriors of small networks, and their formulas with explicit inverses."""

from __future__ import annotations

import math

import torch
from laplace_cases import dense_jacobian, make_laplace

from lingp.inference.sparse import BoundSparse
from lingp.inference.sparse.inducing import points_at


def close(actual, expected, rtol=1e-8):
    """Relative to the largest entry: small covariances are differences of large numbers."""
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=rtol * scale)


def sparse_laplace(
    net,
    x,
    y,
    prior,
    likelihood,
    mean,
    rows,
    columns=None,
    keep_bytes=0,
    complement="fitted",
    **options,
):
    """Laplace with inducing points at some training rows; chunks of a few rows."""
    laplace = make_laplace(
        net, x, y, prior, likelihood, "weight", mean, keep_bytes=keep_bytes, **options
    )
    linearized = laplace.training.linearized
    points = points_at(linearized, x[rows].to(linearized.dtype), columns)
    laplace.method = BoundSparse(points, keep_bytes, complement=complement)
    return laplace


def free(laplace):
    return [*laplace.prior.parameters(), *laplace.likelihood.parameters()]


def moments(laplace, x_test):
    """Mean (n·C,), covariance and its diagonal blocks at test inputs."""
    outputs, factors = laplace.training.linearized.factors(x_test)
    posterior, shift = laplace.posterior(), laplace.weight_shift()
    if shift is not None:
        outputs = outputs + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)
    return (
        outputs.reshape(-1),
        posterior.covariance(factors),
        posterior.marginal_covariance(factors),
    )


def dense_sparse(net, x, y, x_test, prior, noise, mean, rows, complement):
    """The formulas for rows J_Z of the Jacobian, with explicit inverses.

    Evidence, means and covariance; and s, and what it multiplies.
    """
    jacobian, jacobian_test = dense_jacobian(net, x), dense_jacobian(net, x_test)
    sizes = torch.tensor([p.numel() for p in net.parameters()])
    variances = prior.variances().repeat_interleave(sizes)
    weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    outputs, outputs_test = net(x).detach().reshape(-1), net(x_test).detach().reshape(-1)
    noise = noise.expand(y.shape).reshape(-1)
    inducing = jacobian[rows]
    middle = torch.linalg.inv((inducing * variances) @ inducing.mT)
    cross, cross_test = ((j * variances) @ inducing.mT for j in (jacobian, jacobian_test))
    nystroem = cross @ middle @ cross.mT
    kernel = (jacobian * variances) @ jacobian.mT
    trace = ((kernel - nystroem).diagonal() / noise).sum()
    scatter = torch.linalg.inv(torch.linalg.inv(middle) + cross.mT @ (cross / noise[:, None]))
    outside = len(variances) - len(rows)
    s, left_out = 1.0, trace
    if complement == "fitted":
        s, left_out = 1 / (1 + trace / outside), outside * (1 + trace / outside).log()
    unspanned = (jacobian_test * variances) @ jacobian_test.mT
    unspanned = unspanned - cross_test @ middle @ cross_test.mT
    informed = cross_test @ scatter @ cross_test.mT
    if mean == "network":
        fit = (
            -0.5 * ((y.reshape(-1) - outputs).square() / noise + (2 * math.pi * noise).log()).sum()
            - 0.5 * ((weights - prior.mean).square() / variances).sum()
            - 0.5 * torch.logdet(torch.eye(len(y.reshape(-1))).double() + nystroem / noise[:, None])
        )
        return fit - 0.5 * left_out, outputs_test, s * unspanned + informed
    deviation = prior.mean - weights
    rest = y.reshape(-1) - outputs - jacobian @ deviation
    total = nystroem + torch.diag(noise)
    solved = torch.linalg.solve(total, rest)
    evidence = -0.5 * (rest @ solved + torch.logdet(total) + len(rest) * math.log(2 * math.pi))
    means = outputs_test + jacobian_test @ deviation + cross_test @ middle @ (cross.mT @ solved)
    if complement == "fitted":
        r = ((rest - nystroem @ solved) / noise).view(y.shape)
        blocks = ((*y.shape, *y.shape), "ncnd->ncd")
        left = torch.einsum(blocks[1], (kernel - nystroem).view(blocks[0]))
        known = torch.einsum(blocks[1], (cross @ scatter @ cross.mT).view(blocks[0]))
        curvature = torch.diag_embed(1 / noise.view(y.shape))
        expected = curvature - curvature @ known @ curvature  # of r rᵀ, but for s
        above = torch.einsum("nc,nd->ncd", r, r) - expected
        scatter_of_residuals = torch.einsum("ncd,ndc->", left, above)
        growth = torch.einsum("ncd,ndc->", left, curvature @ left @ curvature)
        s = (scatter_of_residuals / growth).clamp(max=1.0).maximum(s)
    return evidence - 0.5 * left_out, means, s * unspanned + informed
