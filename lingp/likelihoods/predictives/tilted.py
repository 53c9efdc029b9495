"""Normal variables reweighted by a function whose logarithm is piecewise linear, in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_KNOTS = 10
_FAR = 1e100  # standard deviations: where log Φ is still finite
_RELEVANT = 40.0  # nats below the peak
_TAIL = -400.0  # log Φ below which its inverse is taken from its asymptote

Terms = Callable[[Tensor], Tensor | None]
"""f (S x N x C) -> log p(y_nc | f_nc), (S x N x C)."""


class Tilted:
    """N(z; 0, 1) g(f) / G with f = μ + σ z: in every cell normal, of variance 1 and mean b σ.

    Parameters
    ----------
    centre, scale
        μ (S x N), σ (N,).
    edges, slopes, values
        Of log g, (N x K - 1), (N x K) and (N x K).
    """

    def __init__(
        self, centre: Tensor, scale: Tensor, edges: Tensor, slopes: Tensor, values: Tensor
    ) -> None:
        self.centre, self.scale, self.edges, self.slopes, self.values = (
            centre,
            scale,
            edges,
            slopes,
            values,
        )
        scale = scale.clamp(min=torch.finfo(scale.dtype).tiny ** 0.5)
        self.shift = slopes * scale.unsqueeze(-1)  # bσ
        z = (edges - centre.unsqueeze(-1)) / scale.unsqueeze(-1)  # (S, N, K - 1)
        far = torch.full_like(centre.unsqueeze(-1), _FAR)
        lower = torch.cat([-far, z], -1).clamp(-_FAR, _FAR) - self.shift
        upper = torch.cat([z, far], -1).clamp(-_FAR, _FAR) - self.shift
        # Φ loses nothing on the left
        self.flipped = lower > 0
        self.lower = torch.where(self.flipped, -upper, lower)
        self.upper = torch.where(self.flipped, -lower, upper)
        self.log_upper = torch.special.log_ndtr(self.upper)
        gap = torch.special.log_ndtr(self.lower) - self.log_upper
        self.share = gap.exp()  # Φ(lower) / Φ(upper)
        height = values + slopes * centre.unsqueeze(-1) + 0.5 * self.shift.square()
        self.log_mass = height + self.log_upper + torch.log1p(-self.share)
        self.log_total = self.log_mass.logsumexp(-1)

    def quantile(self, uniform: Tensor) -> Tensor:
        """z below which a share of the mass lies, (S x N)."""
        mass = (self.log_mass - self.log_total.unsqueeze(-1)).exp()
        total = mass.cumsum(-1)
        uniform = uniform * total[..., -1]
        cell = (total < uniform.unsqueeze(-1)).sum(-1, keepdim=True).clamp(max=mass.shape[-1] - 1)

        def here(t: Tensor) -> Tensor:
            return t.expand(*cell.shape[:-1], -1).gather(-1, cell).squeeze(-1)

        tiny = torch.finfo(mass.dtype).tiny
        inside = 1 - (here(total) - uniform) / here(mass).clamp(min=tiny)
        flipped, share, upper = here(self.flipped), here(self.share), here(self.upper)
        inside = torch.where(flipped, 1 - inside, inside).clamp(tiny, 1)
        log_below = torch.log(share + inside * (1 - share))  # relative to Φ(upper)
        level = here(self.log_upper) + log_below
        z = torch.where(
            level > _TAIL,
            torch.special.ndtri(level.exp()),
            -(upper.square() - 2 * log_below).sqrt(),
        )
        z = torch.minimum(torch.maximum(z, here(self.lower)), upper)
        return torch.where(flipped, -z, z) + here(self.shift)

    def log_ratio(self, z: Tensor) -> Tensor:
        """log g(f) - log G, (S x N)."""
        f = self.centre + self.scale * z
        cell = torch.searchsorted(self.edges.contiguous(), f.mT.contiguous())  # (N, S)
        cell = cell.mT.unsqueeze(-1)
        slope, value = (
            t.expand(len(z), -1, -1).gather(-1, cell).squeeze(-1)
            for t in (self.slopes, self.values)
        )
        return value + slope * f - self.log_total


def knots(
    terms: Terms, mean: Tensor, deviation: Tensor, peak: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Edges, slopes and values of log g near log p(y_c | f), with edges where that is bent."""
    like: dict[str, Any] = {"dtype": mean.dtype, "device": mean.device}
    wide = mean + deviation * torch.linspace(-10, 10, 81, **like)[:, None, None]
    # links vary on the scale of one
    lively = torch.linspace(-40, 40, 161, **like)[:, None, None].expand(-1, *mean.shape)
    steps = torch.logspace(-8, 1, 73, **like)
    steps = torch.cat([-steps.flip(0), steps.new_zeros(1), steps])[:, None, None]
    grid = torch.cat([wide, lively, peak + deviation * steps]).sort(0).values
    floor = -1e6  # stands for log 0
    found = terms(grid)
    assert found is not None
    levels = torch.nan_to_num(found, nan=floor, neginf=floor)
    tiny = torch.finfo(mean.dtype).tiny
    posterior = levels - 0.5 * ((grid - mean) / deviation.clamp(min=tiny**0.5)).square()
    best = posterior.amax(0)
    there = torch.gather(posterior, 0, (grid - peak).abs().argmin(0, keepdim=True))
    relevant = posterior >= torch.minimum(best, there) - _RELEVANT
    run = grid.diff(dim=0)
    slopes = torch.where(run > 0, levels.diff(dim=0) / run.where(run > 0, 1.0), 0.0)
    # a chord over a run h leaves h² κ / 8: equal parts of ∫ κ^½
    bend = (slopes.diff(dim=0).abs() * (grid[2:] - grid[:-2])).sqrt()
    bend = torch.where(relevant[1:-1], bend, 0.0)
    total = bend.cumsum(0)
    marks = torch.linspace(0, 1, _KNOTS + 1, **like)[:, None, None] * total[-1]
    index = torch.searchsorted(
        total.movedim(0, -1).contiguous(), marks.movedim(0, -1).contiguous()
    ).clamp(max=len(total) - 1)
    index = index.movedim(-1, 0) + 1
    f, level = grid.gather(0, index), levels.gather(0, index)
    run = f.diff(dim=0)
    chords = torch.where(run > 0, level.diff(dim=0) / run.where(run > 0, 1.0), 0.0)
    # beyond the outer edges as it goes on far out
    chords[0] = slopes.gather(0, index[:1] - 1)[0]
    chords[-1] = slopes.gather(0, index[-1:])[0]
    values = torch.cat([level[1:2] - chords[:1] * f[1:2], level[1:-1] - chords[1:] * f[1:-1]])
    return f[1:-1].movedim(0, -1).contiguous(), chords.movedim(0, -1), values.movedim(0, -1)
