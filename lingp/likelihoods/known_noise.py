"""Gaussian noise whose variance is known for every target."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gpytorch.constraints import Interval
from torch import Tensor

from lingp.likelihoods.base import QuadraticLikelihood
from lingp.likelihoods.counts import check_known, flatten_pairs
from lingp.likelihoods.predictives import KnownNoisePredictive
from lingp.likelihoods.roots import CurvatureRoot, DiagonalRoot
from lingp.likelihoods.targets import check_values, flatten_targets, split_missing
from lingp.runtime.described import described, start


@described(noise=start("noise"))
class KnownNoiseGaussian(QuadraticLikelihood):
    """log p(y | f) = -½ Σ_c [ (y_c - f_c)² / v_c + log(2π v_c) ],   v_c = known_c + noise_c.

    r = (y - f) / v,   R = diag(v^{-1/2}),   z = (y - f) / v^{1/2}.

    Targets have a trailing axis of two: the value, and its known noise variance (measurement error
    squared). To predict, `known` gives the noise variances of the rows to predict; without it,
    predictions have only the shared noise, which is none unless `noise` is given.

    Parameters
    ----------
    noise
        Noise variance beyond the known one, shared by all data: a number, or one per output (C,);
        a hyperparameter (`raw_noise`). None: there is no more noise than is known.
    noise_constraint
        A GPyTorch constraint for `raw_noise`; positive through `exp` by default.
    """

    methods = ("exact",)
    allows_missing = True

    def __init__(
        self,
        noise: float | Sequence[float] | Tensor | None = None,
        *,
        noise_constraint: Interval | None = None,
    ) -> None:
        super().__init__()
        self.has_noise = noise is not None
        if noise is not None:
            self.register_positive("noise", noise, noise_constraint)

    @property
    def noise(self) -> Tensor:
        """Shared noise variance, 0-d or (C,), zero if there is none; settable if there is."""
        return self.positive("noise") if self.has_noise else torch.zeros((), dtype=torch.float64)

    @noise.setter
    def noise(self, value: float | Sequence[float] | Tensor) -> None:
        if not self.has_noise:
            raise ValueError("noise: this likelihood has none; make KnownNoiseGaussian(noise=...)")
        self.set_positive("noise", value)

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*output_shape, 2)

    def moment_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return output_shape

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self.has_noise:
            self.check_per_output("noise", math.prod(output_shape))
        pairs = flatten_pairs(y, output_shape, dtype, "(value, known noise variance)")
        known = pairs[..., 1]
        lowest = known >= 0 if self.has_noise else known > 0
        sign = ">=" if self.has_noise else ">"
        check_known(
            pairs, lowest & known.isfinite(), f"a noise variance {sign} 0 beside every target"
        )
        return pairs

    def _split(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values without NaN, noise variances and what was observed, (N x C)."""
        values, known = y.unbind(-1)
        values, observed = split_missing(values)
        return values, torch.where(observed, known, 1.0) + self.noise.to(f), observed

    def _variance(self, f: Tensor, known: Tensor | None) -> Tensor:
        """Noise variance of new targets, (N x C) or broadcastable to it."""
        noise = self.noise.to(f)
        return noise if known is None else noise + known

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        values, variance, observed = self._split(y, f)
        terms = (values - f).square() / variance + (2 * math.pi * variance).log()
        return -0.5 * (observed * terms).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        values, variance, observed = self._split(y, f)
        return observed * (values - f) / variance

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        _, variance, observed = self._split(y, f)
        return DiagonalRoot(observed * variance.rsqrt())

    def whitened_residual(self, y: Tensor, f: Tensor) -> Tensor:
        values, variance, observed = self._split(y, f)
        return observed * (values - f) * variance.rsqrt()

    def conditional_mean(self, f: Tensor, known: Tensor | None = None) -> Tensor:
        return f

    def conditional_variance(self, f: Tensor, known: Tensor | None = None) -> Tensor:
        return self._variance(f, known).expand_as(f)

    def sample(
        self,
        f: Tensor,
        known: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        normal = torch.randn(f.shape, generator=generator, dtype=f.dtype, device=f.device)
        return f + self._variance(f, known).sqrt() * normal

    def predictive(
        self,
        mean: Tensor,
        covariance: Tensor,
        method: str | None = None,
        *,
        known: Tensor | None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> KnownNoisePredictive:
        self.check_method(method)
        if known is not None:
            known = flatten_targets(known, (mean.shape[-1],), mean.dtype, name="known").to(mean)
            if len(known) != len(mean):
                raise ValueError(f"known: has {len(known)} rows for {len(mean)} rows to predict")
            check_values(known, (known >= 0) & known.isfinite(), "noise variances >= 0", "known")
        variance = self._variance(mean, known)
        return KnownNoisePredictive(mean, covariance, variance, self.noise.to(mean))

    def extra_repr(self) -> str:
        if not self.has_noise:
            return ""
        values = self.noise.detach()
        return f"noise={values.item():.4g}" if values.dim() == 0 else f"noise={values.tolist()}"
