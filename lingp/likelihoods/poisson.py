"""Counts with a log link, optionally with an exposure."""

from __future__ import annotations

import torch
from torch import Tensor

from lingp.likelihoods.counts import (
    MAX_LOG_RATE,
    check_counts,
    continued_exp,
    continued_exp_derivative,
    limited_exp,
    log_factorial_excess,
    sample_poisson,
)
from lingp.likelihoods.elementwise import ElementwiseLikelihood
from lingp.likelihoods.named import named
from lingp.likelihoods.targets import check_values
from lingp.runtime.described import described, same


@described(exposure=same("has_known"))
@named("poisson")
class Poisson(ElementwiseLikelihood):
    """log p(y | f) = Σ_c [ y_c η_c - exp(η_c) - log y_c! ],   η = f + log exposure.

    r = y - exp(η),   R = diag(exp(η / 2)).

    Above η = 40 (rates past 2e17, where float64 no longer tells counts apart) exp(η) is continued
    by its second-order expansion there: log_prob stays concave and finite for every finite f, and
    residual and curvature stay its exact derivatives. Moments and draws use the rate exp(40) there.

    Parameters
    ----------
    exposure
        Whether targets are pairs (count, exposure) along a last axis of two: the time, area or
        population a count was taken over, so that exp(f) is a rate per unit. At prediction
        `known` is the exposure, one by default.
    """

    cdf_support = "counts"
    limits_fit = True

    def __init__(self, *, exposure: bool = False) -> None:
        super().__init__()
        self.has_known = exposure

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        targets, counts = self.flatten(y, output_shape, dtype, "(count, exposure)")
        check_counts(counts)
        return targets

    def check_known(
        self, known: Tensor, name: str = "known", *, missing: Tensor | None = None
    ) -> None:
        valid = (known > 0) & known.isfinite()
        check_values(known, valid, "a finite positive exposure", name, missing=missing)

    def log_rate(self, f: Tensor) -> Tensor:
        """η = f + log exposure."""
        return f if self.known is None else f + self.known.log()

    def log_prob_each(self, y: Tensor, f: Tensor) -> Tensor:
        eta, positive = self.log_rate(f), y.clamp(min=1.0)
        u = eta - positive.log()
        # around the count's own rate y, no large terms cancel
        inside = (y > 0) & (eta < MAX_LOG_RATE)
        near = y * (u - torch.where(inside, u, 0.0).expm1())
        far = y * (u + 1) - continued_exp(eta)
        return torch.where(inside, near, far) - log_factorial_excess(y).to(f)

    def residual_each(self, y: Tensor, f: Tensor) -> Tensor:
        return y - continued_exp_derivative(self.log_rate(f))

    def root_each(self, y: Tensor, f: Tensor) -> Tensor:
        return (0.5 * self.log_rate(f).clamp(max=MAX_LOG_RATE)).exp()

    def conditional_mean(self, f: Tensor) -> Tensor:
        return limited_exp(self.log_rate(f))

    def conditional_variance(self, f: Tensor) -> Tensor:
        return limited_exp(self.log_rate(f))

    def exact_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        # of a log-normal rate
        eta = self.log_rate(mean)
        rate = (eta + 0.5 * variance).exp()
        return rate, (2 * eta + variance).exp() * variance.expm1(), rate

    def cdf_each(self, y: Tensor, f: Tensor) -> Tensor:
        rate = limited_exp(self.log_rate(f))
        return torch.special.gammaincc((y + 1).expand_as(rate), rate)

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return sample_poisson(limited_exp(self.log_rate(f)), generator)

    def extra_repr(self) -> str:
        return "exposure=True" if self.has_known else ""
