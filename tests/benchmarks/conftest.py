"""Modules of the benchmarks, and a small set of class labels for them."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from scripts import BENCHMARKS


@pytest.fixture
def benchmark_module(monkeypatch):
    """Imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def glass_folder(tmp_path):
    """Sixty rows under the name of glass: two informative columns, one constant; one split."""
    random = np.random.default_rng(0)
    x = np.column_stack([random.normal(size=(60, 2)), np.ones(60)])
    rows = random.permutation(60)
    np.savez(
        tmp_path / "cls_glass.npz",
        X=3 + 2 * x,
        y=(x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5),
        immer2021_test_index=[rows[:10]],
        immer2021_valid_index=[rows[20:30]],
    )
    return tmp_path
