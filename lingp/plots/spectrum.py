"""How many directions the data determine: eigenvalues of the whitened kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lingp.metrics.arguments import Array, as_array
from lingp.models import LinearizedGP
from lingp.plots.style import BLUE, GREY, SKY, VERMILION, axes, check_gp, legend_above, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DECADES = 6  # shown below 1


def kernel_spectrum(gp: LinearizedGP, *, ax: Axes | None = None) -> Axes:
    """Eigenvalues λ of Φ Φᵀ, the kernel in units of noise and prior, largest first.

    A direction with λ above 1 is known better from the data than from the prior, one below from the
    prior. Each counts λ / (1 + λ) towards γ, the effective number of parameters.

    Parameters
    ----------
    gp
        With data, and exact or sparse inference (its inducing points' kernel then).
    ax
        Axes to draw on; new ones by default.
    """
    values = _eigenvalues(gp)
    shares = values / (1 + values)
    gamma = float(shares.sum())
    ax, index = axes(ax), np.arange(1, len(values) + 1)
    eps = torch.finfo(gp.dtype).eps
    low = max(10.0**-_DECADES, len(values) * eps * float(values.max()))  # rounding below
    ax.fill_between(index, low, np.maximum(values, low), color=SKY, alpha=0.25, linewidth=0)
    ax.plot(index, values, "o-", color=BLUE, markersize=3, linewidth=1, label="eigenvalue λ")
    ax.axhline(
        1, color=GREY, linestyle="--", linewidth=1, label="λ = 1: prior and data weigh as much"
    )
    ax.axvline(
        gamma,
        color=VERMILION,
        linestyle="-.",
        linewidth=1.5,
        label=f"γ = {gamma:.1f} of {len(values)}",
    )
    ax.set_yscale("log")
    ax.set_ylim(low, max(10.0, 3 * float(values.max())))
    ax.set_xlim(0, 2 + max(gamma, int((values > low).sum())))
    ax.set_xlabel("direction")
    ax.set_ylabel("eigenvalue of Φ Φᵀ")
    tidy(ax)
    legend_above(ax, 3)
    return ax


@torch.no_grad()
def _eigenvalues(gp: LinearizedGP) -> Array:
    """Of what is factorised less the identity, descending."""
    check_gp(gp)
    return as_array(gp.laplace.solution().posterior.eigenvalues(), "gp")
