"""Small data, and estimators that are quick on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from lingp.estimators import LinearizedGPClassifier, LinearizedGPRegressor

QUICK: dict[str, Any] = {"hidden_layer_sizes": (6,), "steps": 40, "random_state": 0}


def table(num_rows: int = 30, num_targets: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets in units of their own."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, 3)) * [1e3, 1.0, 1e-4] + [5.0, -1e3, 0.0]
    z = (X - X.mean(0)) / X.std(0)
    y = 40 * np.sin(z[:, 0]) + 10 * z[:, 1] + 500 + 2 * rng.normal(size=num_rows)
    if num_targets is None:
        return X, y
    return X, np.column_stack([y * 10.0**-t + t * z[:, 2] for t in range(num_targets)])


def labelled(num_rows: int = 40, num_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels that are strings."""
    X, y = table(num_rows)
    ranks = y.argsort().argsort() * num_classes // num_rows
    return X, np.array(["pear", "apple", "fig"])[ranks]


def regressor(**options: Any) -> LinearizedGPRegressor:
    """Quick."""
    return LinearizedGPRegressor(**{**QUICK, **options})


def classifier(**options: Any) -> LinearizedGPClassifier:
    """Quick."""
    return LinearizedGPClassifier(**{**QUICK, **options})


def network(outputs: int = 1, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """From 3 inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).to(dtype)
