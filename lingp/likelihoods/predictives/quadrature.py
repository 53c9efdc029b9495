"""Adaptive Gauss-Kronrod quadrature of many one-dimensional integrals at once.

Integrals over f ~ N(m, v) are taken over z, f = m + √v z. Gauss-Hermite nodes miss a likelihood
much narrower than the prior (a logistic step under a standard deviation of 100); here panels are
halved until each integral has converged, whatever the scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Nodes >= 0 of the 15-point Kronrod rule, its weights, and those of the 7-point Gauss rule on every
# second node (Piessens et al., QUADPACK, 1983)
_HALF_NODES = (
    0.991455371120812639206854697526329,
    0.949107912342758524526189684047851,
    0.864864423359769072789712788640926,
    0.741531185599394439863864773280788,
    0.586087235467691130294144691693013,
    0.405845151377397166906606412076961,
    0.207784955007898467600689403773245,
    0.0,
)
_HALF_KRONROD = (
    0.022935322010529224963732008058970,
    0.063092092629978553290700663189204,
    0.104790010322250183839876322541518,
    0.140653259715525918745189590510238,
    0.169004726639267902826583426598550,
    0.190350578064785409913256402421014,
    0.204432940075298892414161999234649,
    0.209482141084727828012999174891714,
)
_GAUSS = np.polynomial.legendre.leggauss(7)[1][:4].tolist()
_HALF_GAUSS = tuple(weight for gauss in _GAUSS for weight in (0.0, gauss))
NUM_NODES = 15
LOG_NORMAL = 0.5 * math.log(2 * math.pi)
_MAX_HALVINGS = 60
_MOST_PENDING = 256  # panels of a row that are halved at a time
_CHUNK = 2**21  # scalars per tensor: stays in cache, and a dozen temporaries stay below 256 MB

Integrand = Callable[[Tensor, Tensor], Tensor]
"""Values at nodes z (15 x P x C) of panels that belong to rows (P,)."""


@dataclass(frozen=True)
class Panels:
    """Intervals of integration, any number for each row.

    Attributes
    ----------
    rows
        The row each panel belongs to, (P,).
    lower, upper
        Its ends, (P x C): the C integrals of a row are halved together.
    """

    rows: Tensor
    lower: Tensor
    upper: Tensor

    @classmethod
    def between(cls, breakpoints: Tensor) -> Panels:
        """Panels between successive breakpoints, (B + 1 x N x C), ascending."""
        num_panels, num_rows, _ = breakpoints[1:].shape
        rows = torch.arange(num_rows, device=breakpoints.device).repeat(num_panels)
        return cls(rows, breakpoints[:-1].flatten(0, 1), breakpoints[1:].flatten(0, 1))

    def where(self, keep: Tensor) -> Panels:
        """Some of the panels, chosen by a boolean mask (P,)."""
        return Panels(self.rows[keep], self.lower[keep], self.upper[keep])

    def halved(self) -> Panels:
        """Each panel as two."""
        middle = (self.lower + self.upper) / 2
        return Panels(
            self.rows.repeat(2),
            torch.cat([self.lower, middle]),
            torch.cat([middle, self.upper]),
        )

    def nodes(self) -> Tensor:
        """Kronrod nodes, (15 x P x C)."""
        centre, half = (self.lower + self.upper) / 2, (self.upper - self.lower) / 2
        return centre + half * _rule(_HALF_NODES, half, odd=True)

    def sum(self, values: Tensor, num_rows: int) -> Tensor:
        """Integral over each row's panels: values at nodes (15 x P x C) -> (num_rows x C)."""
        panel = (_rule(_HALF_KRONROD, values) * values).sum(0) * (self.upper - self.lower) / 2
        total = torch.zeros(num_rows, *panel.shape[1:], dtype=panel.dtype, device=panel.device)
        return total.index_add(0, self.rows, panel)


def _rule(half: tuple[float, ...], like: Tensor, *, odd: bool = False) -> Tensor:
    """All 15 nodes (odd) or weights from those of the right half, (15 x 1 x 1)."""
    right = torch.tensor(half, dtype=like.dtype, device=like.device)
    left = -right if odd else right
    return torch.cat([left, right[:-1].flip(0)])[:, None, None]


@torch.no_grad()
def adapt(integrand: Integrand, breakpoints: Tensor, tolerance: float | None = None) -> Panels:
    """Panels on which every integral is accurate to `tolerance`.

    Parameters
    ----------
    integrand
        One function, (15 x P x C) -> (15 x P x M), or several that share panels, (J x 15 x P x M).
    breakpoints
        Ends of the first panels, (B + 1 x N x C).
    tolerance
        Error allowed in a panel, relative to the integral of the absolute value over all panels.
    """
    if tolerance is None:
        tolerance = max(1e-11, 100 * torch.finfo(breakpoints.dtype).eps)
    pending, done = Panels.between(breakpoints), []
    num_rows, settled = breakpoints.shape[1], torch.tensor(0.0)
    for _ in range(_MAX_HALVINGS):
        values = integrand(pending.nodes(), pending.rows)
        magnitude, error = _estimate(values, (pending.upper - pending.lower) / 2)
        sums = torch.zeros(
            *magnitude.shape[:-2],
            num_rows,
            magnitude.shape[-1],
            dtype=magnitude.dtype,
            device=magnitude.device,
        )
        total = settled + sums.index_add(-2, pending.rows, magnitude)
        bad = error > tolerance * total.index_select(-2, pending.rows)
        keep = ~bad.movedim(-2, 0).flatten(1).any(1)
        # halving helps near a step or a peak; a row of which all panels need it is rounding noise
        keep |= torch.bincount(pending.rows, minlength=num_rows)[pending.rows] > _MOST_PENDING
        settled = settled + sums.index_add(-2, pending.rows[keep], magnitude[..., keep, :])
        done.append(pending.where(keep))
        if bool(keep.all()):
            break
        pending = pending.where(~keep).halved()
    else:
        done.append(pending)
    return Panels(
        torch.cat([p.rows for p in done]),
        torch.cat([p.lower for p in done]),
        torch.cat([p.upper for p in done]),
    )


def _estimate(values: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """∫|q| and the error of ∫q in each panel, (... x P x M), as QUADPACK estimates it."""
    kronrod, gauss = _rule(_HALF_KRONROD, values), _rule(_HALF_GAUSS, values)
    integral = (kronrod * values).sum(-3)
    difference = half * (integral - (gauss * values).sum(-3)).abs()
    spread = half * (kronrod * (values - integral.unsqueeze(-3) / 2).abs()).sum(-3)
    ratio = torch.where(spread > 0, 200 * difference / spread, 0.0)
    return half * (kronrod * values.abs()).sum(-3), spread * ratio.pow(1.5).clamp(max=1.0)


def log_integral(
    log_integrand: Integrand, breakpoints: Tensor, peak: Tensor, tolerance: float | None = None
) -> Tensor:
    """log ∫ exp h(z) dz, (N x C), differentiable in whatever h depends on.

    Parameters
    ----------
    log_integrand
        h, (15 x P x C) -> (15 x P x C).
    breakpoints
        Ends of the first panels, (B + 1 x N x C); their span is the range of integration.
    peak
        About the largest value of h, (N x C).
    tolerance
        As in `adapt`.
    """
    peak = peak.detach()

    def scaled(z: Tensor, rows: Tensor) -> Tensor:
        return (log_integrand(z, rows) - peak[rows]).exp()

    panels = adapt(scaled, breakpoints.detach(), tolerance)
    values = scaled(panels.nodes(), panels.rows)
    return panels.sum(values, len(peak)).log() + peak


def normal_panels(like: Tensor) -> Tensor:
    """Breakpoints over all of a standard normal, (B + 1 x N x C)."""
    z = torch.linspace(-10, 10, 7, dtype=like.dtype, device=like.device)
    return z[:, None, None].expand(-1, *like.shape)


def normal_mean(function: Integrand, breakpoints: Tensor, tolerance: float | None = None) -> Tensor:
    """E h(z) under z ~ N(0, 1), (N x C), differentiable in whatever h depends on.

    Parameters
    ----------
    function
        h, one function or several that share panels, as in `adapt`: (J x N x C) then.
    breakpoints
        Ends of the first panels, (B + 1 x N x C); their span is the range of integration.
    tolerance
        As in `adapt`.
    """

    def weighted(z: Tensor, rows: Tensor) -> Tensor:
        return function(z, rows) * (-0.5 * z.square() - LOG_NORMAL).exp()

    panels = adapt(weighted, breakpoints, tolerance)
    values, num_rows = weighted(panels.nodes(), panels.rows), breakpoints.shape[1]
    if values.dim() == 3:
        return panels.sum(values, num_rows)
    return torch.stack([panels.sum(part, num_rows) for part in values])


def row_chunks(num_rows: int, scalars_per_row: int) -> Iterator[slice]:
    """Slices of the rows such that tensors with `scalars_per_row` stay small."""
    size = max(1, _CHUNK // max(1, scalars_per_row))
    for start in range(0, num_rows, size):
        yield slice(start, start + size)
