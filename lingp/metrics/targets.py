"""Targets of a prediction as scores of single values need them: flat, without known quantities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lingp.metrics.arguments import Array, as_array
from lingp.models import Prediction


def checked_targets(prediction: Prediction, y: Any) -> tuple[Tensor, Tensor | None]:
    """Values (n x T), NaN where missing, and their known quantities (n x T), if there are any."""
    targets = prediction.layout.checked(y)
    if targets.dim() == 3:
        values, known = targets.unbind(-1)
        return values, torch.where(known.isnan(), 1.0, known)  # missing with its target
    return targets.reshape(len(targets), -1), None


def values_of(prediction: Prediction, y: Any) -> Array:
    """Values of the targets, (n x T), NaN where missing."""
    return as_array(checked_targets(prediction, y)[0], "y", missing=True)
