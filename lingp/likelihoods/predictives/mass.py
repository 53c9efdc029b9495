"""Where p(y | f) N(f | m, s²) has its mass, so that quadrature starts in the right place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lingp.likelihoods.elementwise import ElementwiseLikelihood

_DROP = 45.0  # e^-45 = 3e-20 of the peak is left out
_REACH = (2 * _DROP) ** 0.5  # how far a standard normal needs to drop that much
_GROWTH = 8.0  # of successive panels away from a narrow peak


@torch.no_grad()
def first_panels(
    likelihood: ElementwiseLikelihood,
    y: Tensor,
    mean: Tensor,
    scale: Tensor,
    known: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Breakpoints (B + 1 x N x C) in z of h(z) = log p(y | m + s z) - z²/2, and its peak (N x C).

    Parameters
    ----------
    y, known
        As `log_prob_each` takes them, (N x C).
    mean, scale
        m and s of each latent output, (N x C).
    """

    def h(z: Tensor) -> Tensor:
        return likelihood.log_prob_each(y, mean + scale * z, known) - 0.5 * z.square()

    def slope(z: Tensor) -> Tensor:
        return scale * likelihood.residual_each(y, mean + scale * z, known) - z

    def width(z: Tensor) -> Tensor:
        """1 / √(-h''), or what Λ says of it."""
        root = scale * likelihood.root_each(y, mean + scale * z, known)
        return (1 + root.square()).rsqrt().clamp(min=1e-15)

    zero = torch.zeros_like(mean)
    if likelihood.log_concave:
        # h'' <= -1: its root lies between 0 and h'(0)
        mode = _root(slope, zero, slope(zero))
        ends = [_drop(h, mode, sign) for sign in (-1.0, 1.0)]
        inner = [(end + 2 * mode) / 3 for end in ends]
        return torch.stack([ends[0], inner[0], mode, inner[1], ends[1]]), h(mode)
    # the peaks of the prior and of the likelihood, and one of h between them
    top = _likelihood_peak(likelihood, y, mean, scale, known)
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
    likelihood: ElementwiseLikelihood, y: Tensor, mean: Tensor, scale: Tensor, known: Tensor | None
) -> Tensor:
    """The z uphill from 0 where p(y | m + s z) is largest."""

    def slope(z: Tensor) -> Tensor:
        return likelihood.residual_each(y, mean + scale * z, known)

    start = slope(torch.zeros_like(mean)).sign()
    far = start.clone()
    for _ in range(100):
        uphill = slope(far) * start > 0
        if not bool(uphill.any()):
            break
        far = torch.where(uphill & (far.abs() < 1e20), 2 * far, far)
    return _root(slope, torch.zeros_like(mean), far)


def _root(slope: Callable[[Tensor], Tensor], inner: Tensor, outer: Tensor) -> Tensor:
    """A root of a function that changes sign between inner and outer, by bisection.

    On the scale of asinh: both 1e-3 and 1e300 are a few steps away.
    """
    near, far = inner.asinh(), outer.asinh()
    toward = (outer - inner).sign()
    for _ in range(60):
        middle = (near + far) / 2
        beyond = slope(middle.sinh()) * toward < 0
        near, far = torch.where(beyond, near, middle), torch.where(beyond, middle, far)
    return ((near + far) / 2).sinh()


def _drop(h: Callable[[Tensor], Tensor], mode: Tensor, sign: float) -> Tensor:
    """The point on one side of the mode where h has dropped by `_DROP` or a little more."""
    enough = h(mode) - _DROP
    low, high = torch.full_like(mode, -32.0), torch.full_like(mode, _REACH).log()
    for _ in range(14):
        middle = (low + high) / 2
        dropped = h(mode + sign * middle.exp()) <= enough
        low, high = torch.where(dropped, low, middle), torch.where(dropped, middle, high)
    return mode + sign * high.exp()
