"""Curvature averaged over nodes is the mean of the curvature at each."""

from __future__ import annotations

import pytest
import torch
from likelihood_cases import CASES, NAMES

from lingp.likelihoods import Categorical, Tempered


def mean_of_squares(likelihood, y, f):
    squares = [root @ root.mT for root in (likelihood.curvature_root(y, g).dense() for g in f)]
    return torch.stack(squares).mean(0)


def nodes_around(outputs, num_nodes=7):
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(num_nodes, *outputs.shape, generator=generator, dtype=outputs.dtype)
    return outputs + noise


@pytest.mark.parametrize("temperature", [None, 2.5])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_it_is_the_mean_over_nodes(case, temperature):
    likelihood, y, outputs = case.build()
    if temperature is not None:
        likelihood = Tempered(likelihood, temperature)
    f = nodes_around(outputs)
    with torch.no_grad():
        found, wanted = likelihood.average_curvature(y, f), mean_of_squares(likelihood, y, f)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12 * float(wanted.abs().max()))


def test_missing_labels_have_none():
    y = torch.tensor([[1.0], [float("nan")]], dtype=torch.float64)
    found = Categorical().average_curvature(y, nodes_around(torch.zeros(2, 4).double()))
    assert found[0].any()
    assert not found[1].any()


def test_sure_classes_keep_their_digits():
    """One minus a probability of nearly one would have lost them all."""
    f = torch.tensor([[[60.0, 0.0, 1.0]]], dtype=torch.float64)
    found = Categorical().average_curvature(torch.zeros(1, 1).double(), f)
    p = torch.exp(f - 60).squeeze()
    wanted = torch.diag(p) - torch.outer(p, p)
    wanted[0, 0] = p[1] + p[2]
    torch.testing.assert_close(found[0], wanted, rtol=1e-12, atol=0)
    assert (torch.linalg.eigvalsh(found[0] * 1e25) > -1e-10).all()


def test_several_labels_are_independent():
    likelihood = Categorical(3)
    y = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    f = nodes_around(torch.zeros(1, 6).double())
    found = likelihood.average_curvature(y, f)
    torch.testing.assert_close(found, mean_of_squares(likelihood, y, f), rtol=1e-12, atol=1e-14)
    assert not found[0, :3, 3:].any()
