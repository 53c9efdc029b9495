"""Gaussian priors on the network's weights: θ ~ N(μ0, Σ0)."""

from __future__ import annotations

from lingp.priors.base import Prior
from lingp.priors.diagonal import Diagonal
from lingp.priors.grouped import Grouped
from lingp.priors.isotropic import Isotropic
from lingp.priors.layerwise import Layerwise
from lingp.priors.unit_wise import UnitWise

__all__ = ["Diagonal", "Grouped", "Isotropic", "Layerwise", "Prior", "UnitWise", "as_prior"]


def as_prior(prior: Prior | float | None) -> Prior:
    """Return a `Prior`: a number is `Isotropic(precision=number)`, None is `Isotropic(1.0)`."""
    if isinstance(prior, Prior):
        return prior
    if prior is None:
        return Isotropic(1.0)
    if isinstance(prior, (int, float)) and not isinstance(prior, bool):
        return Isotropic(float(prior))
    raise TypeError(
        f"prior: expected an object from lingp.priors, a number (the precision of an isotropic "
        f"prior) or None, got {type(prior).__name__}"
    )
