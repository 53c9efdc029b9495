"""Curvature roots: every kind equals the dense block diagonal matrix it stands for."""

from __future__ import annotations

import pytest
import torch

from lingp.likelihoods import BlockRoot, DenseRoot, DiagonalRoot, SharedRoot, UniformRoot

N, C, K, S = 4, 3, 2, 5


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ROOTS = {
    "uniform": (lambda t: UniformRoot(t, N, C), torch.tensor(0.8, dtype=torch.float64)),
    "shared": (lambda t: SharedRoot(t, N), tensor(C, C)),
    "shared wide": (lambda t: SharedRoot(t, N), tensor(C, C + 1)),
    "diagonal": (DiagonalRoot, tensor(N, C)),
    "square": (DenseRoot, tensor(N, C, C)),
    "tall": (DenseRoot, tensor(N, C, K)),
    "wide": (DenseRoot, tensor(N, C, C + 1)),
    "blocks": (BlockRoot, tensor(N, C, 1, 2)),
    "one block": (BlockRoot, tensor(N, 1, C, K)),
}


EXPLICIT = {
    UniformRoot: lambda t: (t * torch.eye(C, dtype=torch.float64)).expand(N, -1, -1),
    SharedRoot: lambda t: t.expand(N, -1, -1),
    DiagonalRoot: torch.diag_embed,
    DenseRoot: lambda t: t,
    BlockRoot: lambda t: torch.stack([torch.block_diag(*blocks) for blocks in t]),
}


def dense(root):
    """R as an (N·C x N·K) matrix, from what the root stores by definition."""
    return torch.block_diag(*EXPLICIT[type(root)](*root.tensors()))


@pytest.mark.parametrize("kind", ROOTS)
def test_products_are_those_of_the_dense_matrix(kind):
    make, values = ROOTS[kind]
    root = make(values)
    matrix = dense(root)
    v, w = tensor(N, C, S, seed=1), tensor(N, root.rank, S, seed=2)
    close = torch.testing.assert_close
    close(root.apply(w).flatten(0, 1), matrix @ w.flatten(0, 1))
    close(root.t_apply(v).flatten(0, 1), matrix.mT @ v.flatten(0, 1))
    gram = tensor(N * C, N * C, seed=3)
    gram = gram @ gram.mT
    close(root.congruence(gram), matrix.mT @ gram @ matrix)
    close(torch.block_diag(*root.dense()), matrix)
    rows = slice(1, 3)
    close(root.rows(rows).apply(w[rows]), root.apply(w)[rows])
    assert root.rows(rows).num_data == 2


@pytest.mark.parametrize("kind", ROOTS)
def test_products_are_differentiable_in_the_root(kind):
    make, values = ROOTS[kind]
    gram = tensor(N * C, N * C, seed=3)
    gram = gram @ gram.mT
    v, w = tensor(N, C, S, seed=1), tensor(N, make(values).rank, S, seed=2)

    def function(values):
        root = make(values)
        return root.apply(w).sum() + root.t_apply(v).sin().sum() + root.congruence(gram).sum()

    assert torch.autograd.gradcheck(function, values.clone().requires_grad_())


@pytest.mark.parametrize("kind", ROOTS)
def test_detach_and_with_tensors_keep_the_kind(kind):
    make, values = ROOTS[kind]
    root = make(values.clone().requires_grad_())
    detached = root.detach()
    assert type(detached) is type(root)
    assert not detached.tensors()[0].requires_grad
    assert torch.equal(root.with_tensors(2 * values).tensors()[0], 2 * values)


@pytest.mark.parametrize("kind", ROOTS)
def test_weights_and_factors_multiply_the_curvature(kind):
    make, values = ROOTS[kind]
    root = make(values)
    w = tensor(N, root.rank, S, seed=1)
    weights = torch.tensor([0.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    close = torch.testing.assert_close
    close(root.weighted(weights).apply(w), weights.sqrt().reshape(-1, 1, 1) * root.apply(w))
    close(
        root.scaled(torch.tensor(0.3).double()).apply(w), torch.tensor(0.3).double() * root.apply(w)
    )
