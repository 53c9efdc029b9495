"""Standard units and default networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lingp.estimators.networks import build_network, layer_sizes
from lingp.estimators.scaling import Standardizer


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
def test_columns_have_mean_0_and_standard_deviation_1(size):
    x = np.random.default_rng(0).normal(size=(50, 3)) * [1, 10, 1e-3] + [0, 1e3, 1]
    found = Standardizer.of(x * size)
    z = found.transform(x * size)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-11)
    np.testing.assert_allclose(z.std(0), 1, rtol=1e-11)
    np.testing.assert_allclose(found.undo(z), x * size, rtol=1e-14)
    np.testing.assert_allclose(found.scale, x.std(0) * size, rtol=1e-11)
    np.testing.assert_allclose(found.mean, x.mean(0) * size, rtol=1e-13)
    assert not found.constant.any()


def test_constant_columns_are_centred_and_left():
    third = np.full(30, 1 / 3)
    rounded = third * (1 + np.finfo(float).eps * (np.arange(30) % 2))
    x = np.column_stack([third, 1e9 * rounded, np.zeros(30), np.arange(30.0)])
    found = Standardizer.of(x)
    np.testing.assert_array_equal(found.constant, [True, True, True, False])
    np.testing.assert_allclose(found.scale[:3], 1, rtol=1e-15)
    assert np.abs(found.transform(x)[:, :3]).max() < 1e-6, "rounding of 1e9"
    moved = found.transform(x[:1] + 2)
    np.testing.assert_allclose(moved[0, :3], 2, rtol=1e-6)


def test_constant_columns_can_be_divided_by_their_size():
    x = np.column_stack([np.full(5, -4e7), np.zeros(5)])
    np.testing.assert_allclose(Standardizer.of(x, divide_constants=True).scale, [4e7, 1])


def test_little_variation_of_large_numbers_is_not_constant():
    x = 1e9 + np.arange(10.0).reshape(-1, 1)
    found = Standardizer.of(x)
    assert not found.constant.any()
    np.testing.assert_allclose(found.transform(x).std(), 1, rtol=1e-6)


def test_identity_leaves_the_bits():
    x = np.random.default_rng(0).normal(size=(5, 2, 3))
    found = Standardizer.identity(x)
    np.testing.assert_array_equal(found.transform(x), x)
    np.testing.assert_array_equal(found.undo(x), x)
    assert found.scale.shape == (2, 3)


def test_sizes_as_people_write_them():
    assert layer_sizes(None) == (50, 50)
    assert layer_sizes(7) == (7,)
    assert layer_sizes([]) == ()
    assert layer_sizes(np.array([3, 4])) == (3, 4)


def test_networks_are_as_asked_for_and_repeat():
    one, other = (build_network(3, (4, 5), 2, "relu", seed=1) for _ in range(2))
    kinds = [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [type(m) for m in one] == kinds
    sizes = [tuple(m.weight.shape) for m in one if isinstance(m, nn.Linear)]
    assert sizes == [(4, 3), (5, 4), (2, 5)]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    linear = build_network(3, (), 1, "tanh", seed=0)
    assert [type(m) for m in linear] == [nn.Linear]
    assert not any(bool(p.any()) for p in linear.parameters())
