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
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from lingp.inference.factorize import OutOfRangeError
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.tuning.objectives import LogEvidence
from lingp.inference.tuning.search import Optimum, flat, flat_gradient, set_flat
from lingp.likelihoods import Gaussian
from lingp.priors import Grouped, Isotropic, Layerwise
from lingp.runtime.progress import count

_MEMORY = 5  # updates to extrapolate from
_LARGEST_STEP = 4.0  # of a logarithm
_INSTEAD = 'use method="l-bfgs" (or "auto")'


@dataclass(frozen=True)
class _Hyperparameters:
    """What the updates move: logarithms of precisions and of noise variances.

    Attributes
    ----------
    raw
        The parameters.
    sign
        -1 for precisions and 1 for noise variances, of all their values one after the other, (h,).
    num_observed
        The number of observed values that a noise variance has; 0 for precisions, (h,).
    negligible
        γ below which a precision may stay as it is.
    """

    raw: list[Tensor]
    sign: Tensor
    num_observed: Tensor
    negligible: float

    def step(self, by_fit: Tensor, by_log_determinant: Tensor) -> Tensor:
        """The update of the logarithms, from the two parts' derivatives in them.

        2 ∂fit/∂log v = |θ - μ0|²/v,   2 ∂fit/∂log σ² = |y - f|²/σ² - N,   ∂log det/∂log σ² = -γ
        """
        tiny = torch.finfo(by_fit.dtype).tiny
        square = self.num_observed + self.sign * 2 * by_fit
        free = self.num_observed + self.sign * by_log_determinant  # N - γ, or γ of precisions
        step = self.sign * (square.clamp(min=tiny).log() - free.clamp(min=tiny).log())
        # neither determined by the data nor anything to the prior: it may stay as it is
        idle = (self.sign < 0) & (torch.maximum(free, square) < self.negligible)
        return torch.where(idle, 0.0, step).clamp(-_LARGEST_STEP, _LARGEST_STEP)


@dataclass(frozen=True)
class _Point:
    """Raw hyperparameters with the evidence, its gradient and the update from there."""

    x: Tensor
    optimum: Optimum
    step: Tensor


def fixed_point(evidence: LogEvidence, threshold: float, max_evaluations: int) -> Optimum:
    """MacKay's updates of the free hyperparameters, in place, until the gradient is small.

    Parameters
    ----------
    evidence
        The evidence of a model with a prior of `lingp.priors`; Gaussian noise, or a likelihood that
        stays and whose curvature does.
    threshold
        The bound on the largest derivative of the evidence in a raw hyperparameter.
    max_evaluations
        The most evaluations of the evidence.

    Raises
    ------
    ValueError
        If the updates don't apply, with the reason.
    """
    moved = _hyperparameters(evidence.laplace)
    evaluations = 0
    with count("optimising", show=evidence.laplace.training.progress) as tick:

        def better(x: Tensor, point: _Point) -> _Point | None:
            """The point at x, if it is better."""
            nonlocal evaluations
            evaluations += 1
            tick()
            found = _evaluate(moved, evidence, x)
            return None if found is None or not found.optimum.better_than(point.optimum) else found

        nowhere = Optimum(-math.inf, math.inf, 0)
        start = flat(moved.raw)
        point = better(start, _Point(start, nowhere, start))
        if point is None:
            raise OutOfRangeError("the evidence is not finite at the current hyperparameters")
        history = [point]
        while point.optimum.gradient_norm > threshold and evaluations < max_evaluations:
            following = better(_extrapolated(history), point) if len(history) > 1 else None
            if following is None:
                history, size = [point], 1.0
                following = better(point.x + point.step, point)
                while following is None and size > 1e-6 and evaluations < max_evaluations:
                    size *= 0.5
                    following = better(point.x + size * point.step, point)
            if following is None:
                break
            point = following
            history = [*history[-_MEMORY:], point]
    set_flat(moved.raw, point.x)
    return replace(point.optimum, num_evaluations=evaluations)


def applies(laplace: LinearizedLaplace) -> bool:
    """Whether `fixed_point` takes all free hyperparameters."""
    try:
        _hyperparameters(laplace)
    except ValueError:
        return False
    return True


def _hyperparameters(laplace: LinearizedLaplace) -> _Hyperparameters:
    """The free hyperparameters, or an error that says why the updates don't apply to them."""
    prior, likelihood, data = laplace.prior, laplace.likelihood, laplace.data_term
    raws, signs, observed = [], [], []
    for module in (prior, likelihood):
        for name, raw in module.named_parameters():
            if not raw.requires_grad:
                continue
            if module is prior and isinstance(prior, Isotropic | Layerwise | Grouped):
                sign, number = -1.0, torch.zeros(())
            elif module is likelihood and isinstance(likelihood, Gaussian):
                sign, number = 1.0, _num_observed(laplace)
                number = number.sum() if raw.dim() == 0 else number
            else:
                raise ValueError(
                    f"method: MacKay updates are for precisions of the priors in lingp.priors and "
                    f"for noise of Gaussian, not for {name} of {type(module).__name__}; "
                    f"{_INSTEAD}"
                )
            _check_logarithmic(module, name, raw)
            raws.append(raw)
            signs.append(torch.full_like(raw, sign))
            observed.append(number.expand_as(raw))
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
    negligible = torch.finfo(laplace.training.outputs.dtype).eps ** 0.5  # of a weight
    return _Hyperparameters(raws, flat(signs), flat(observed), negligible)


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


def _extrapolated(history: list[_Point]) -> Tensor:
    """The combination of updates whose differences cancel best (Anderson acceleration)."""
    last = history[-1]
    moves = torch.stack([b.x - a.x for a, b in pairwise(history)], -1)
    changes = torch.stack([b.step - a.step for a, b in pairwise(history)], -1)
    share = torch.linalg.pinv(changes, rtol=1e-10) @ last.step
    step = last.step - (moves + changes) @ share
    return last.x + step.clamp(-_LARGEST_STEP, _LARGEST_STEP)


def _evaluate(moved: _Hyperparameters, evidence: LogEvidence, x: Tensor) -> _Point | None:
    """Evidence, gradient and update at x; None where they aren't finite."""
    set_flat(moved.raw, x)
    try:
        with torch.enable_grad():
            fit, log_determinant = evidence.parts()
            by_fit = flat_gradient(fit, moved.raw, retain_graph=True)
            by_log_determinant = flat_gradient(log_determinant, moved.raw)
    except OutOfRangeError:
        return None
    value = float(fit.detach() - 0.5 * log_determinant.detach())
    gradient = by_fit - 0.5 * by_log_determinant
    if not (math.isfinite(value) and bool(torch.isfinite(gradient).all())):
        return None
    found = Optimum(value, float(gradient.abs().max()), 1)
    return _Point(x, found, moved.step(by_fit, by_log_determinant))
