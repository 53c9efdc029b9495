"""Fixed-point updates of prior precisions and noise to the evidence's maximum.

With γ_l = ∂ log det(I + Φ Φᵀ) / ∂ log v_l, the number of directions of the weights of precision l
(all of them, a parameter tensor's, a unit's, a single one) that the data determine, and γ = Σ γ_l,
the evidence is stationary where

    v_l = |θ_l - μ0_l|² / γ_l,        σ² = |y - f|² / (N - γ)

(MacKay, 1992, "Bayesian interpolation", section 4), at the posterior's mean θ, f: the network's or
the refitted one. N counts observed values; with one noise variance per output, each output has its
own. One derivative of the log determinant gives all γ_l, so that thousands of precisions, as in
automatic relevance determination, take as many evaluations as one. The updates are iterated in
logarithms, extrapolated from the last few of them (Anderson, 1965) where that raises the evidence,
and shortened where they would lower it.

A precision without a finite optimum, as that of weights that are exactly at the prior's mean or
that the refitted mean doesn't need, rises until the data determine less than ε^{1/2} of its weights
(γ_l and |θ_l - μ0_l|²/v_l; 1.5e-8 in float64), and stays there: such weights are switched off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from lingp.inference.factorize import OutOfRangeError
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.tuning.search import Search, set_values
from lingp.inference.tuning.spectrum import Parts, has_spectral_evidence, spectral_evidence
from lingp.likelihoods import Gaussian
from lingp.priors import Grouped, Isotropic, Layerwise
from lingp.runtime.progress import count

_MEMORY = 5  # updates to extrapolate from
_LARGEST_STEP = 4.0  # of a logarithm
_INSTEAD = 'use method="l-bfgs" (or "auto")'


@dataclass(frozen=True)
class _Point:
    """Raw hyperparameters with the evidence, its gradient and the update from there."""

    x: Tensor
    value: float
    gradient_norm: float
    step: Tensor


class _Group:
    """Hyperparameters of one kind: a raw parameter, log of a precision or of a noise variance."""

    def __init__(self, raw: Tensor, num_observed: Tensor | None, dtype: torch.dtype) -> None:
        self.raw = raw
        self.num_observed = num_observed  # of each noise variance; None for precisions
        self.negligible = torch.finfo(dtype).eps ** 0.5  # of a weight

    def step(self, fit: Tensor, log_determinant: Tensor) -> Tensor:
        """The update of the logarithms, from the two parts' derivatives in them.

        2 ∂fit/∂log v = |θ - μ0|²/v,   2 ∂fit/∂log σ² = |y - f|²/σ² - N,   ∂log det/∂log σ² = -γ
        """
        tiny = torch.finfo(fit.dtype).tiny
        if self.num_observed is None:
            square, gamma = -2 * fit, -log_determinant
            step = gamma.clamp(min=tiny).log() - square.clamp(min=tiny).log()
            # neither determined by the data nor anything to the prior: it may stay as it is
            step = torch.where(torch.maximum(gamma, square) < self.negligible, 0.0, step)
        else:
            square, left = 2 * fit + self.num_observed, self.num_observed + log_determinant
            step = square.clamp(min=tiny).log() - left.clamp(min=tiny).log()
        return step.clamp(-_LARGEST_STEP, _LARGEST_STEP)


def fixed_point(laplace: LinearizedLaplace, threshold: float, max_evaluations: int) -> Search:
    """MacKay's updates of the free hyperparameters, in place, until the gradient is small.

    Parameters
    ----------
    laplace
        A prior of `lingp.priors`; Gaussian noise, or a likelihood that stays and whose curvature
        does.
    threshold
        On the largest derivative of the evidence in a raw hyperparameter.
    max_evaluations
        Of the evidence.

    Raises
    ------
    ValueError
        If the updates don't apply, with the reason.
    """
    groups = _groups(laplace)
    spectral = spectral_evidence(laplace) if has_spectral_evidence(laplace) else None
    start = [g.raw.detach().clone() for g in groups]
    found = _iterate(
        groups,
        spectral.parts if spectral else lambda: _parts(laplace),
        laplace,
        threshold,
        max_evaluations,
    )
    if spectral is not None and not spectral.resolved(threshold):
        set_values([g.raw for g in groups], start)
        found = _iterate(groups, lambda: _parts(laplace), laplace, threshold, max_evaluations)
    return found


def applies(laplace: LinearizedLaplace) -> bool:
    """Whether `fixed_point` takes all free hyperparameters."""
    try:
        _groups(laplace)
    except ValueError:
        return False
    return True


def effective_numbers(laplace: LinearizedLaplace) -> Tensor:
    """γ of each precision, in the shape of `prior.raw_precision`: how much the data determine.

    They are between 0 and the number of weights of that precision, and sum to γ = tr (I + Φ Φᵀ)⁻¹
    Φ Φᵀ. Whether precisions are free doesn't matter.
    """
    raw = laplace.prior.raw_precision
    wanted = raw.requires_grad
    raw.requires_grad_(True)
    try:
        with torch.enable_grad():
            log_determinant = laplace.solution().occam.log_determinant()
            slopes = torch.autograd.grad(log_determinant, raw)[0]
            # raw values need not be logarithms
            by_raw = torch.autograd.grad(laplace.prior.precision.log().sum(), raw)[0]
    finally:
        raw.requires_grad_(wanted)
    return -slopes / by_raw


def _parts(laplace: LinearizedLaplace) -> Parts:
    at = laplace.solution()
    fit = laplace.data_term.log_prob(at.outputs) - 0.5 * at.e.square().sum()
    return fit, at.occam.log_determinant() + at.occam.left_out()


def _groups(laplace: LinearizedLaplace) -> list[_Group]:
    """The free hyperparameters, or an error that says why the updates don't apply to them."""
    prior, likelihood, data = laplace.prior, laplace.likelihood, laplace.data_term
    groups = []
    for module in (prior, likelihood):
        for name, raw in module.named_parameters():
            if not raw.requires_grad:
                continue
            if module is prior and isinstance(prior, Isotropic | Layerwise | Grouped):
                number = None
            elif module is likelihood and isinstance(likelihood, Gaussian):
                number = _num_observed(laplace)
                number = (number.sum() if raw.dim() == 0 else number).to(raw)
            else:
                raise ValueError(
                    f"method: MacKay updates are for precisions of the priors in lingp.priors and "
                    f"for noise of Gaussian, not for {name} of {type(module).__name__}; "
                    f"{_INSTEAD}"
                )
            _check_logarithmic(module, name, raw)
            groups.append(_Group(raw, number, laplace.training.outputs.dtype))
    if next(iter([*prior.named_priors(), *likelihood.named_priors()]), None) is not None:
        raise ValueError(
            "method: MacKay updates can't take account of GPyTorch priors on hyperparameters; "
            f"{_INSTEAD}"
        )
    if not data.is_quadratic and (laplace.mean, laplace.sites) == ("refit", "mean"):
        raise ValueError(
            "method: MacKay updates need a curvature that stays, but with a refitted mean that of "
            f'{type(likelihood).__name__} moves with it; {_INSTEAD}, or mean="network"'
        )
    return groups


def _check_logarithmic(module: torch.nn.Module, name: str, raw: Tensor) -> None:
    constraint = getattr(module, f"{name}_constraint")
    with torch.no_grad():
        ratio = constraint.transform(raw + 1) / constraint.transform(raw)
    if not bool(((ratio - math.e).abs() < 1e-6).all()):
        raise ValueError(
            f"method: MacKay updates need {name} to be a logarithm, but it has the constraint "
            f"{constraint}; {_INSTEAD}"
        )


def _num_observed(laplace: LinearizedLaplace) -> Tensor:
    """Weighted number of observed values of each output, (C,), float64."""
    targets, weights = laplace.training.targets, laplace.training.weights
    observed = (~targets.isnan()).double()
    own = observed.sum(0) if weights is None else weights.double() @ observed
    return laplace.training.shards.sum(own)


def _iterate(
    groups: list[_Group],
    parts: Callable[[], Parts],
    laplace: LinearizedLaplace,
    threshold: float,
    max_evaluations: int,
) -> Search:
    parameters = [g.raw for g in groups]
    evaluations = 0
    with count("optimising", show=laplace.training.progress) as tick:

        def at(x: Tensor) -> _Point | None:
            nonlocal evaluations
            evaluations += 1
            tick()
            return _evaluate(groups, parts, x)

        start = torch.cat([p.detach().reshape(-1) for p in parameters])
        point = at(start)
        if point is None:
            raise OutOfRangeError("the evidence is not finite at the current hyperparameters")
        history = [point]
        while point.gradient_norm > threshold and evaluations < max_evaluations:
            following = at(_extrapolated(history)) if len(history) > 1 else None
            if following is None or not _better(following, point):
                history = [point]
                size = 1.0
                following = at(point.x + point.step)
                while following is None or not _better(following, point):
                    size *= 0.5
                    if size < 1e-6 or evaluations >= max_evaluations:
                        break
                    following = at(point.x + size * point.step)
            if following is None or not _better(following, point):
                break
            point = following
            history = [*history[-_MEMORY:], point]
    _set_flat(parameters, point.x)
    return Search(point.value, point.gradient_norm, evaluations)


def _better(new: _Point, old: _Point) -> bool:
    if abs(new.value - old.value) <= 1e-12 * abs(old.value):  # equal but for rounding
        return new.gradient_norm < old.gradient_norm
    return new.value > old.value


def _extrapolated(history: list[_Point]) -> Tensor:
    """The combination of updates whose differences cancel best (Anderson acceleration)."""
    last = history[-1]
    moves = torch.stack([b.x - a.x for a, b in pairwise(history)], -1)
    changes = torch.stack([b.step - a.step for a, b in pairwise(history)], -1)
    share = torch.linalg.pinv(changes, rtol=1e-10) @ last.step
    step = last.step - (moves + changes) @ share
    return last.x + step.clamp(-_LARGEST_STEP, _LARGEST_STEP)


def _evaluate(groups: list[_Group], parts: Callable[[], Parts], x: Tensor) -> _Point | None:
    """Evidence, gradient and update at x; None where they aren't finite."""
    parameters = [g.raw for g in groups]
    _set_flat(parameters, x)
    try:
        with torch.enable_grad():
            fit, log_determinant = parts()
            by_fit = _gradients(fit, parameters)
            by_log_determinant = _gradients(log_determinant, parameters)
    except OutOfRangeError:
        return None
    value = float(fit.detach() - 0.5 * log_determinant.detach())
    gradient = torch.cat(
        [(a - 0.5 * b).reshape(-1) for a, b in zip(by_fit, by_log_determinant, strict=True)]
    )
    if not (math.isfinite(value) and bool(torch.isfinite(gradient).all())):
        return None
    steps = [
        g.step(a, b).reshape(-1) for g, a, b in zip(groups, by_fit, by_log_determinant, strict=True)
    ]
    return _Point(x, value, float(gradient.abs().max()), torch.cat(steps))


def _gradients(value: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]


def _set_flat(parameters: list[Tensor], x: Tensor) -> None:
    pieces = x.split([p.numel() for p in parameters])
    set_values(parameters, [v.view_as(p) for v, p in zip(pieces, parameters, strict=True)])
