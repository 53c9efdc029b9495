"""BoTorch's transforms for units that are known already."""

from __future__ import annotations

from typing import Any

import torch
from botorch.models.transforms.input import AffineInputTransform
from botorch.models.transforms.outcome import Standardize
from torch import Tensor


def between(X: Tensor, bounds: Tensor | None, side: float) -> AffineInputTransform:
    """The transform that takes least and largest inputs to -side/2 and side/2.

    Parameters
    ----------
    X
        Inputs, (n x d).
    bounds
        Least and largest ones, (2 x d); None: those of X.
    side
        Length of the new range.
    """
    lower, upper = (X.amin(0), X.amax(0)) if bounds is None else bounds.to(X)
    scale = (upper - lower) / side
    return affine((lower + upper) / 2, torch.where(scale > 0, scale, 1.0))


def affine(offset: Tensor, scale: Tensor) -> AffineInputTransform:
    """(x - offset) / scale, (d,) each."""
    return AffineInputTransform(len(scale), coefficient=scale, offset=offset)


def standardize(mean: Tensor, scale: Tensor) -> Standardize:
    """(y - mean) / scale, (m,) each, as if learned."""
    made: Any = Standardize(len(scale))
    made.means, made.stdvs = mean.unsqueeze(0), scale.unsqueeze(0)
    made._stdvs_sq, made._is_trained = made.stdvs.square(), made._is_trained | True
    return made.eval()
