"""Gaussian noise, one variance for all outputs or one for each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gpytorch.constraints import Interval
from torch import Tensor

from lingp.likelihoods.base import QuadraticLikelihood
from lingp.likelihoods.named import named
from lingp.likelihoods.predictives import GaussianPredictive
from lingp.likelihoods.roots import CurvatureRoot, DiagonalRoot, UniformRoot
from lingp.likelihoods.targets import flatten_targets, split_missing
from lingp.runtime.described import described, start


@described(noise=start("noise"))
@named("gaussian")
class Gaussian(QuadraticLikelihood):
    """log p(y | f) = -½ Σ_c [ (y_c - f_c)² / noise_c + log(2π noise_c) ].

    r = (y - f) / noise,   R = diag(noise^{-1/2}),   z = (y - f) / noise^{1/2}.

    Parameters
    ----------
    noise
        Noise variance: a number, or one per output (C,). Kept in float64 as a hyperparameter
        (`raw_noise`); GPyTorch priors can be registered on `noise`.
    noise_constraint
        A GPyTorch constraint for `raw_noise`; positive through `exp` by default.
    """

    raw_noise: torch.nn.Parameter

    methods = ("exact",)
    allows_missing = True

    def __init__(
        self,
        noise: float | Sequence[float] | Tensor = 1.0,
        *,
        noise_constraint: Interval | None = None,
    ) -> None:
        super().__init__()
        self.register_positive("noise", noise, noise_constraint)

    @property
    def noise(self) -> Tensor:
        """Noise variance, 0-d or (C,); settable."""
        return self.positive("noise")

    @noise.setter
    def noise(self, value: float | Sequence[float] | Tensor) -> None:
        self.set_positive("noise", value)

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.check_per_output("noise", math.prod(output_shape))
        return flatten_targets(y, output_shape, dtype, allow_missing=True)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        noise, (y, observed) = self.noise.to(f), split_missing(y)
        terms = (y - f).square() / noise + (2 * math.pi * noise).log()
        return -0.5 * (observed * terms).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        y, observed = split_missing(y)
        return observed * (y - f) / self.noise.to(f)

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        root, missing = self.noise.to(f).rsqrt(), y.isnan()
        if bool(missing.any()):
            return DiagonalRoot(torch.where(missing, 0.0, root.expand_as(f)))
        if root.dim() == 0:
            return UniformRoot(root, *f.shape)
        return DiagonalRoot(root.expand_as(f))

    def whitened_residual(self, y: Tensor, f: Tensor) -> Tensor:
        y, observed = split_missing(y)
        return observed * (y - f) * self.noise.to(f).rsqrt()

    def conditional_mean(self, f: Tensor, known: Tensor | None = None) -> Tensor:
        return f

    def conditional_variance(self, f: Tensor, known: Tensor | None = None) -> Tensor:
        return self.noise.to(f).expand_as(f)

    def sample(
        self,
        f: Tensor,
        known: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        normal = torch.randn(f.shape, generator=generator, dtype=f.dtype, device=f.device)
        return f + self.noise.to(f).sqrt() * normal

    def predictive(
        self,
        mean: Tensor,
        covariance: Tensor,
        method: str | None = None,
        *,
        known: Tensor | None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> GaussianPredictive:
        self.check_method(method)
        return GaussianPredictive(mean, covariance, self.noise.to(mean))

    def extra_repr(self) -> str:
        values = self.noise.detach()
        return f"noise={values.item():.4g}" if values.dim() == 0 else f"noise={values.tolist()}"
