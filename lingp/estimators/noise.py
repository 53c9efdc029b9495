"""Gaussian noise for targets as they come."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from gpytorch.constraints import GreaterThan

from lingp.estimators.scaling import Standardizer
from lingp.likelihoods import Gaussian

_FLOOR = 2e-3  # variance of the noise of constant targets, relative to their mean square


def gaussian_noise(targets: np.ndarray, scaler: Standardizer) -> Gaussian:
    """One variance for each target, with a floor for those that are all the same.

    The evidence would take their noise to 0, and training would stop.

    Parameters
    ----------
    targets
        In the units of the data, (N, T).
    scaler
        Of the targets, to the units that the network sees.
    """
    constant = scaler.constant
    if not constant.any():
        return Gaussian([1.0] * len(constant) if len(constant) > 1 else 1.0)
    which = f"targets {np.flatnonzero(constant).tolist()} are" if len(constant) > 1 else "it is"
    warnings.warn(
        f"y: {which} the same in all rows, so that no noise can be learned; its standard "
        f"deviation is held at {math.sqrt(_FLOOR):.0%} of the target's size, or more",
        stacklevel=4,
    )
    size = np.where(targets[0] == 0, 1.0, np.abs(targets[0]) / scaler.scale)
    floor = torch.as_tensor(np.where(constant, _FLOOR * size**2, 0.0))
    noise = floor.clamp(min=0.5).mul(2)
    if len(constant) == 1:
        floor, noise = floor.squeeze(0), noise.squeeze(0)
    return Gaussian(noise, noise_constraint=GreaterThan(floor))
