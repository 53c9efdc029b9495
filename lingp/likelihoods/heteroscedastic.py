"""Gaussian noise whose variance the network gives too, by natural parameters."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lingp.likelihoods.base import Likelihood
from lingp.likelihoods.named import named
from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.predictives.draws import normal_like
from lingp.likelihoods.predictives.gaussian import GaussianPredictive
from lingp.likelihoods.predictives.heteroscedastic import HeteroscedasticPredictive
from lingp.likelihoods.roots import CurvatureRoot, DenseRoot
from lingp.likelihoods.targets import flatten_targets, split_missing
from lingp.runtime.described import described, same

_LINKS = ("softplus", "exp")
_LOWEST = -40.0
_HIGHEST = {"softplus": math.exp(40.0), "exp": 40.0}


@described(link=same("link"), floor=same("floor"))
@named("heteroscedastic")
class Heteroscedastic(Likelihood):
    """y ~ N(μ, σ²) with natural parameters η₁ = f₁ = μ / σ² and η₂ = -½ g(f₂) = -1 / (2σ²).

    Derivatives and curvature::

        log p = -½ log 2π + η₁ y + η₂ y² + η₁² / (4 η₂) + ½ log(-2 η₂)
              = -½ log 2π + ½ log g - ½ z²,          z = √g (y - μ),  μ = f₁ / g,  σ² = 1 / g
        r     = ( y - μ,  ½ (g'/g) (1 - z √g (y + μ)) )
        Λ     = (dη/df)ᵀ [ σ²     2μσ²         ] (dη/df),        dη/df = diag(1, -½ g')
                         [ 2μσ²   4μ²σ² + 2σ⁴  ]
        R     = columns (σ, -g' μ σ), (0, (g'/g) / √2)

    Λ is the Hessian in η carried to f: the GGN, and also the Fisher information.

    The network has 2T outputs for T targets: the first T are f₁, the last T are f₂, as
    `net(x).chunk(2, -1)` gives them.

    f₂ is taken as -40 below -40, and g as e⁴⁰ above e⁴⁰, so that σ stays between 2e-9 and 5e8 and
    nothing overflows, in float32 too. Out there f₂ has no gradient and no curvature.

    Parameters
    ----------
    link
        The function g > 0: "softplus", which grows linearly, or "exp".
    floor
        Added to g: the least precision, in 1 / (units of y)². Where f₂ is uncertain and may be far
        below 0, σ could be anything, and intervals could be as wide; with a floor σ is at most
        floor^(-1/2).

    References
    ----------
    Le, Smola and Canu, "Heteroscedastic Gaussian process regression", ICML 2005, section 3.
    Immer, Palumbo, Marx and Vogt, "Effective Bayesian heteroscedastic regression with deep neural
    networks", NeurIPS 2023, equations 3 to 6.
    """

    methods = ("mixture", "natural", "delta", "monte_carlo")
    allows_missing = True

    def __init__(
        self, link: Literal["softplus", "exp"] = "softplus", *, floor: float = 0.0
    ) -> None:
        super().__init__()
        if link not in _LINKS:
            raise ValueError(f'link: expected "softplus" or "exp", got {link!r}')
        if not 0 <= floor < math.inf:
            raise ValueError(f"floor: expected a finite precision >= 0, got {floor}")
        self.link = link
        self.floor = float(floor)

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(output_shape) != 1 or output_shape[0] % 2 or output_shape[0] == 0:
            raise ValueError(
                f"net: Heteroscedastic needs outputs (2T,) for T targets, the T values f₁ and then "
                f"the T values f₂; the network's output has shape {output_shape} for one datum; "
                "give its last layer twice as many units as there are targets"
            )
        return (output_shape[0] // 2,)

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return flatten_targets(y, self.target_shape(output_shape), dtype, allow_missing=True)

    def precision(self, f2: Tensor) -> Tensor:
        """g(f₂) = 1 / σ², elementwise."""
        f2 = f2.clamp(_LOWEST, _HIGHEST[self.link])
        # torch's own threshold of 20 is off by 1e-10
        found = f2.exp() if self.link == "exp" else softplus(f2, threshold=50.0)
        return found + self.floor if self.floor else found

    def relative_slope(self, f2: Tensor) -> Tensor:
        """g'(f₂) / g(f₂), elementwise, at most 1."""
        inside = (f2 >= _LOWEST) & (f2 <= _HIGHEST[self.link])
        if self.link == "softplus":
            return inside * f2.clamp(min=_LOWEST).sigmoid() / self.precision(f2)
        return inside / (1 + self.floor * (-f2.clamp(_LOWEST, _HIGHEST[self.link])).exp())

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        (y, observed), (f1, f2) = split_missing(y), f.chunk(2, -1)
        g = self.precision(f2)
        z = g.sqrt() * (y - f1 / g)
        terms = z.square() - g.log() + math.log(2 * math.pi)
        return -0.5 * (observed * terms).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        (y, observed), (f1, f2) = split_missing(y), f.chunk(2, -1)
        g = self.precision(f2)
        mean = f1 / g
        r1 = y - mean
        r2 = 0.5 * self.relative_slope(f2) * (1 - g * r1 * (y + mean))
        return torch.cat([observed * r1, observed * r2], -1)

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        observed, (f1, f2) = ~y.isnan(), f.chunk(2, -1)
        sigma, slope = self.precision(f2).rsqrt(), self.relative_slope(f2)
        first = torch.diag_embed(observed * sigma)  # (N, T, T)
        cross = torch.diag_embed(-(observed * slope * f1 * sigma))
        second = torch.diag_embed(observed * slope / math.sqrt(2))
        upper = torch.cat([first, torch.zeros_like(first)], -1)
        return DenseRoot(torch.cat([upper, torch.cat([cross, second], -1)], -2))

    def conditional_mean(self, f: Tensor) -> Tensor:
        f1, f2 = f.chunk(2, -1)
        return f1 / self.precision(f2)

    def conditional_variance(self, f: Tensor) -> Tensor:
        return self.precision(f.chunk(2, -1)[1]).reciprocal()

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        mean = self.conditional_mean(f)
        return mean + self.conditional_variance(f).sqrt() * normal_like(mean, generator)

    def integrated(self, mean: Tensor, covariance: Tensor, method: str) -> Predictive:
        if method == "mixture":
            return HeteroscedasticPredictive(self, mean, covariance, self.precision)
        # normal: μ linear in f₁ at the mean of f₂ ("natural"), or in both ("delta")
        f1, f2 = mean.chunk(2, -1)
        variance = self.precision(f2).reciprocal()
        slopes = torch.diag_embed(variance)  # ∂μ/∂f₁, (N, T, T)
        along = -f1 * variance * self.relative_slope(f2) if method == "delta" else 0 * f2
        slopes = torch.cat([slopes, torch.diag_embed(along)], -1)
        spread = slopes @ covariance @ slopes.mT
        return GaussianPredictive(f1 * variance, spread, torch.diag_embed(variance))

    def extra_repr(self) -> str:
        return f"link={self.link!r}" + (f", floor={self.floor:g}" if self.floor else "")
