"""Where p(y | f) N(f | m, s²) has its mass, so that quadrature starts in the right place."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lingp.likelihoods.conditional import ElementwiseConditional

_DROP = 45.0  # e^-45 = 3e-20 of the peak is left out
_REACH = (2 * _DROP) ** 0.5  # how far a standard normal needs to drop that much
_GROWTH = 8.0  # of successive panels away from a narrow peak


@torch.no_grad()
def first_panels(
    likelihood: ElementwiseConditional,
    y: Tensor,
    mean: Tensor,
    scale: Tensor,
) -> tuple[Tensor, Tensor]:
    """Breakpoints (B + 1 x N x C) in z of h(z) = log p(y | m + s z) - z²/2, and its peak (N x C).

    Parameters
    ----------
    y
        As `log_prob_each` takes them, (N x C).
    mean, scale
        m and s of each latent output, (N x C).
    """

    def h(z: Tensor) -> Tensor:
        return likelihood.log_prob_each(y, mean + scale * z) - 0.5 * z.square()

    def slope(z: Tensor) -> Tensor:
        return scale * likelihood.residual_each(y, mean + scale * z) - z

    def width(z: Tensor) -> Tensor:
        """1 / √(-h''), or what Λ says of it."""
        root = scale * likelihood.root_each(y, mean + scale * z)
        return (1 + root.square()).rsqrt().clamp(min=1e-15)

    zero = torch.zeros_like(mean)
    if likelihood.log_concave:
        # h'' <= -1: its root lies between 0 and h'(0)
        mode = _root(slope, zero, slope(zero))
        ends = [mode + sign * _drop(h, mode, sign, _DROP, _REACH) for sign in (-1.0, 1.0)]
        inner = [(end + 2 * mode) / 3 for end in ends]
        return torch.stack([ends[0], inner[0], mode, inner[1], ends[1]]), h(mode)
    # the peaks of the prior and of the likelihood, and one of h between them
    top = _likelihood_peak(likelihood, y, mean, scale)
    mode = _root(slope, zero, top)
    centres = torch.stack([zero, top, mode])
    widths = torch.stack([width(zero), width(top), width(mode)])
    ends = [centres.amin(0) - _REACH, centres.amax(0) + _REACH]
    peak = torch.stack([h(zero), h(top), h(mode)]).amax(0)
    return graded(centres, widths, ends[0], ends[1]), peak


def graded(centres: Tensor, widths: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Breakpoints that get closer towards each centre, down to its width.

    Parameters
    ----------
    centres, widths
        (M x N x C).
    lower, upper
        The whole range, (N x C).
    """
    span = ((upper - lower) / widths).amax()
    steps = [widths]
    while _GROWTH ** len(steps) < span:
        steps.append(steps[-1] * _GROWTH)
    points = [lower.unsqueeze(0), upper.unsqueeze(0), centres]
    for step in steps:
        points += [centres - step, centres + step]
    return torch.cat(points).clamp(lower, upper).sort(0).values


def _likelihood_peak(
    likelihood: ElementwiseConditional, y: Tensor, mean: Tensor, scale: Tensor
) -> Tensor:
    """The z uphill from 0 where p(y | m + s z) is largest."""

    def slope(z: Tensor) -> Tensor:
        return likelihood.residual_each(y, mean + scale * z)

    start = slope(torch.zeros_like(mean)).sign()
    far = start.clone()
    for _ in range(100):
        uphill = slope(far) * start > 0
        if not bool(uphill.any()):
            break
        far = torch.where(uphill & (far.abs() < 1e20), 2 * far, far)
    return _root(slope, torch.zeros_like(mean), far)


def _root(slope: Callable[[Tensor], Tensor], inner: Tensor, outer: Tensor) -> Tensor:
    """A root of a function that changes sign between inner and outer.

    On the scale of asinh: both 1e-3 and 1e300 are a few steps away.
    """
    return _bisect(lambda t: slope(t.sinh()), inner.asinh(), outer.asinh()).sinh()


def _drop(
    h: Callable[[Tensor], Tensor], mode: Tensor, sign: float, amount: float, reach: Tensor | float
) -> Tensor:
    """How far on one side of the mode h has dropped by `amount` or a little more."""
    enough = h(mode) - amount
    high = torch.as_tensor(reach, dtype=mode.dtype, device=mode.device).expand_as(mode).log()
    low = high - 34.0
    for _ in range(14):
        middle = (low + high) / 2
        dropped = h(mode + sign * middle.exp()) <= enough
        low, high = torch.where(dropped, low, middle), torch.where(dropped, middle, high)
    return high.exp()


@torch.no_grad()
def scanned_panels(
    h: Callable[[Tensor], Tensor], grid: Tensor, crossing: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Breakpoints (B + 1 x N x C) and peak (N x C) of an h that may have several peaks.

    Parameters
    ----------
    h
        (... x N x C) -> (... x N x C).
    grid
        Ascending points, (M x N x C), their span the range of integration: between neighbours h
        has at most one peak, but for narrow ones where `crossing` is zero.
    crossing
        (... x N x C) -> (... x N x C); its first and last change of sign in the grid are found.
    """
    values, last = h(grid), len(grid) - 1
    best = values.argmax(0, keepdim=True)
    left, right = (_pick(grid, best + step) for step in (-1, 1))
    mode = _maximum(h, left, right)
    positive = crossing(grid) > 0
    changes = positive[1:] != positive[:-1]
    ends = [changes.int().argmax(0), last - 1 - changes.flip(0).int().argmax(0)]
    found = changes.any(0)
    centres = [mode]
    for index in ends:
        root = _bisect(crossing, *(_pick(grid, index.unsqueeze(0) + step) for step in (0, 1)))
        centres.append(torch.where(found, root, mode))
    peaks = torch.stack([h(centre) for centre in centres])
    peak = peaks.amax(0)
    # the outermost points that count, and one more
    counts = values > peak - _DROP
    none = ~counts.any(0)
    first = torch.where(none, last, counts.int().argmax(0))
    final = torch.where(none, 0, last - counts.flip(0).int().argmax(0))
    lower = _pick(grid, first.unsqueeze(0) - 1)
    upper = _pick(grid, final.unsqueeze(0) + 1)
    important = [
        torch.where(p > peak - _DROP, c, mode) for p, c in zip(peaks, centres, strict=True)
    ]
    span = grid[-1] - grid[0]
    widths = [
        torch.minimum(_drop(h, c, -1.0, 1.0, span), _drop(h, c, 1.0, 1.0, span)) for c in important
    ]
    # where no point of the grid counts the peaks are narrow
    reach = [torch.stack(important), _GROWTH * torch.stack(widths)]
    lower = torch.minimum(lower, (reach[0] - reach[1]).amin(0))
    upper = torch.maximum(upper, (reach[0] + reach[1]).amax(0))
    return graded(torch.stack(important), torch.stack(widths), lower, upper), peak


def _pick(grid: Tensor, index: Tensor) -> Tensor:
    """Grid points by index (1 x N x C), clamped to the grid's ends, (N x C)."""
    return grid.gather(0, index.clamp(0, len(grid) - 1))[0]


def _bisect(function: Callable[[Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
    """Where a function changes sign between left and right."""
    start = function(left) > 0
    for _ in range(80):
        middle = (left + right) / 2
        same = (function(middle) > 0) == start
        left, right = torch.where(same, middle, left), torch.where(same, right, middle)
    return (left + right) / 2


def _maximum(h: Callable[[Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
    """Where h is largest between left and right, by golden sections."""
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        inner = [right - ratio * (right - left), left + ratio * (right - left)]
        up = h(inner[0]) < h(inner[1])
        left, right = torch.where(up, inner[0], left), torch.where(up, right, inner[1])
    return (left + right) / 2
