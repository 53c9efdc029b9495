"""Overdispersed counts with a log link, optionally with an exposure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gpytorch.constraints import Interval
from torch import Tensor
from torch.nn.functional import logsigmoid

from lingp.likelihoods.base import Hyperparameter
from lingp.likelihoods.counts import (
    limited_exp,
    log_factorial_excess,
    sample_poisson,
    stirling_error,
)
from lingp.likelihoods.named import named
from lingp.likelihoods.poisson import Poisson
from lingp.likelihoods.special import betainc
from lingp.runtime.described import described, same, start


@described(dispersion=start("dispersion"), exposure=same("has_known"))
@named("negative_binomial")
class NegativeBinomial(Poisson):
    """Counts with mean μ = exposure · exp(f) and variance μ + dispersion · μ².

        log p(y | f) = Σ_c [ log Γ(y + s) - log Γ(s) - log y! + y log σ(u) + s log σ(-u) ]
        s = 1 / dispersion,   u = f + log exposure - log s,   σ(u) = μ / (s + μ)

    r = y σ(-u) - s σ(u),   R = diag(((y + s) σ(u) σ(-u))^{1/2}).

    log p is concave in f, so Λ is the exact Hessian (not its expectation, the Fisher s σ(u)), and
    Laplace at the mode is that of the model itself. It is the Poisson likelihood in the limit of
    dispersion 0, to rounding at any small dispersion (Loader's saddle-point form), and finite for
    every finite f without a cap; moments and draws use the rate exp(40) beyond it.
    Hilbe (2011), Negative Binomial Regression, chapter 8: the NB2 model.

    Parameters
    ----------
    dispersion
        A number, or one per output (C,). Kept in float64 as a hyperparameter (`raw_dispersion`).
    exposure
        As for `Poisson`.
    dispersion_constraint
        A GPyTorch constraint for `raw_dispersion`; positive through `exp` by default.
    """

    raw_dispersion: torch.nn.Parameter

    def __init__(
        self,
        dispersion: float | Sequence[float] | Tensor = 1.0,
        *,
        exposure: bool = False,
        dispersion_constraint: Interval | None = None,
    ) -> None:
        super().__init__(exposure=exposure)
        self.register_positive("dispersion", dispersion, dispersion_constraint)

    dispersion = Hyperparameter()
    """Excess of the variance over Poisson's in units of μ², 0-d or (C,); settable."""

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.check_per_output("dispersion", math.prod(output_shape))
        return super().check_targets(y, output_shape, dtype)

    def log_odds(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """s and u, broadcastable to f."""
        size = self.dispersion.reciprocal().to(f)
        return size, self.log_rate(f) + self.dispersion.log().to(f)

    def log_prob_each(self, y: Tensor, f: Tensor) -> Tensor:
        size, u = self.log_odds(f)
        exact, count = self.dispersion.reciprocal().to(f.device), y.double()
        ratio = (count / exact).log1p()
        # log p at the mean μ = y, where nothing large cancels, and the deviation from it
        peak = stirling_error(exact + count) - stirling_error(exact) - 0.5 * ratio
        peak = peak - log_factorial_excess(y)
        share = (exact / count.clamp(min=1.0)).log1p()  # -log of the mean's σ(u) at μ = y
        successes = y * (logsigmoid(u) + share.to(f))
        failures = size * (logsigmoid(-u) + ratio.to(f))
        return successes + failures + peak.to(f)

    def residual_each(self, y: Tensor, f: Tensor) -> Tensor:
        size, u = self.log_odds(f)
        return y * (-u).sigmoid() - size * u.sigmoid()

    def root_each(self, y: Tensor, f: Tensor) -> Tensor:
        size, u = self.log_odds(f)
        return (y + size).sqrt() * (0.5 * (logsigmoid(u) + logsigmoid(-u))).exp()

    def conditional_variance(self, f: Tensor) -> Tensor:
        rate = limited_exp(self.log_rate(f))
        return rate + self.dispersion.to(f) * rate.square()

    def exact_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        # of a log-normal rate
        eta = self.log_rate(mean)
        rate, dispersion = (eta + 0.5 * variance).exp(), self.dispersion.to(mean)
        inner = rate + dispersion * (2 * eta + 2 * variance).exp()
        return rate, (2 * eta + variance).exp() * variance.expm1(), inner

    def cdf_each(self, y: Tensor, f: Tensor) -> Tensor:
        size, u = self.log_odds(f)
        return betainc(size, y + 1, (-u).sigmoid())

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        size = self.dispersion.detach().reciprocal().to(f).expand_as(f).contiguous()
        gamma = torch._standard_gamma(size, generator=generator) / size
        return sample_poisson(limited_exp(self.log_rate(f)) * gamma, generator)

    def extra_repr(self) -> str:
        values = self.dispersion.detach()
        text = f"dispersion={values.item() if values.dim() == 0 else values.tolist()}"
        return f"{text}, exposure=True" if self.has_known else text
