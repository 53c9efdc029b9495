"""Gaussian noise: what its kinds share, and noise that is independent between outputs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, DenseLinearOperator
from torch import Tensor

from lingp.likelihoods.base import Likelihood
from lingp.likelihoods.named import named
from lingp.likelihoods.predictives.draws import normal_like
from lingp.likelihoods.predictives.gaussian import GaussianPredictive
from lingp.likelihoods.roots import CurvatureRoot, DiagonalRoot, UniformRoot
from lingp.likelihoods.targets import check_values, flatten_targets, split_missing
from lingp.runtime.described import described, start


class GaussianNoise(Likelihood):
    """y = f + ε with normal ε of which the covariance doesn't depend on f."""

    methods = ("exact",)
    allows_missing = True
    is_quadratic = True
    limits_fit = True

    @abstractmethod
    def noise_covariance(self, f: Tensor) -> Tensor:
        """Covariance of ε, (N x C x C) or (C x C)."""

    def forward(self, function_dist: MultivariateNormal) -> MultivariateNormal:
        """`likelihood(gp(X))`: N(mean, covariance + noise) over the targets at all rows of X."""
        if self.has_known and self.known is None:
            raise ValueError(
                "known: the noise variance of each target isn't known here; write "
                "likelihood.at(variances)(gp(X)), with variances (N x C)"
            )
        mean = function_dist.mean
        f = mean if mean.dim() > 1 else mean.unsqueeze(-1)
        blocks = self.noise_covariance(f).expand(*f.shape, f.shape[-1])
        noise = BlockDiagLinearOperator(DenseLinearOperator(blocks))
        return type(function_dist)(mean, function_dist.lazy_covariance_matrix + noise)

    def conditional_mean(self, f: Tensor) -> Tensor:
        return f

    def integrated(self, mean: Tensor, covariance: Tensor, method: str) -> GaussianPredictive:
        return GaussianPredictive(mean, covariance, self.noise_covariance(mean))


class IndependentNoise(GaussianNoise):
    """log p(y | f) = -½ Σ_c [ (y_c - f_c)² / v_c + log(2π v_c) ],   v_c = noise_c (+ known_c).

    r = (y - f) / v,   R = diag(v^{-1/2}),   z = (y - f) / v^{1/2}.
    """

    has_noise: bool = True
    """Whether there is a noise variance beyond the known one."""

    @property
    def noise(self) -> Tensor:
        """Noise variance that all data share, 0-d or (C,); zero if there is none. Settable."""
        return self.positive("noise") if self.has_noise else torch.zeros((), dtype=torch.float64)

    @noise.setter
    def noise(self, value: float | Sequence[float] | Tensor) -> None:
        if not self.has_noise:
            raise ValueError("noise: this likelihood has none; make KnownNoiseGaussian(noise=...)")
        self.set_positive("noise", value)

    def _variance(self, f: Tensor, known: Tensor | None) -> Tensor:
        """v, (N x C) or broadcastable to it."""
        noise = self.noise.to(f)
        return noise if known is None else noise + known

    def _split(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values without NaN, v, and what was observed."""
        known = None
        if self.has_known:
            y, known = y.unbind(-1)
            known = torch.where(y.isnan(), 1.0, known)
        values, observed = split_missing(y)
        return values, self._variance(f, known), observed

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        values, variance, observed = self._split(y, f)
        terms = (values - f).square() / variance + (2 * math.pi * variance).log()
        return -0.5 * (observed * terms).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        values, variance, observed = self._split(y, f)
        return observed * (values - f) / variance

    def whitened_residual(self, y: Tensor, f: Tensor) -> Tensor:
        values, variance, observed = self._split(y, f)
        return observed * (values - f) * variance.rsqrt()

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        _, variance, observed = self._split(y, f)
        if variance.dim() == 0 and bool(observed.all()):
            return UniformRoot(variance.rsqrt(), *f.shape)
        return DiagonalRoot(observed * variance.rsqrt())

    def conditional_variance(self, f: Tensor) -> Tensor:
        return self._variance(f, self.known).expand_as(f)

    def noise_covariance(self, f: Tensor) -> Tensor:
        variance = self._variance(f, self.known)
        shape = torch.broadcast_shapes(variance.shape, f.shape[-1:])
        return torch.diag_embed(variance.expand(shape))

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return f + self._variance(f, self.known).sqrt() * normal_like(f, generator)

    def extra_repr(self) -> str:
        if not self.has_noise:
            return ""
        values = self.noise.detach()
        return f"noise={values.item():.4g}" if values.dim() == 0 else f"noise={values.tolist()}"


@described(noise=start("noise"))
@named("gaussian")
class Gaussian(IndependentNoise):
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

    def __init__(
        self,
        noise: float | Sequence[float] | Tensor = 1.0,
        *,
        noise_constraint: Interval | None = None,
    ) -> None:
        super().__init__()
        self.register_positive("noise", noise, noise_constraint)

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.check_per_output("noise", math.prod(output_shape))
        return flatten_targets(y, output_shape, dtype, allow_missing=True)


@described(noise=start("noise"))
class KnownNoiseGaussian(IndependentNoise):
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

    has_known = True

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

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self.has_noise:
            self.check_per_output("noise", math.prod(output_shape))
        pairs, _ = self.flatten(y, output_shape, dtype, "(value, known noise variance)")
        known = pairs[..., 1]
        if not self.has_noise:
            check_values(known, known > 0, "a noise variance > 0", "y[..., 1]")
        return pairs

    def check_known(
        self, known: Tensor, name: str = "known", *, missing: Tensor | None = None
    ) -> None:
        valid = (known >= 0) & known.isfinite()
        check_values(known, valid, "noise variances >= 0", name, missing=missing)

    def integrated(self, mean: Tensor, covariance: Tensor, method: str) -> GaussianPredictive:
        noise = self.noise_covariance(mean)
        return GaussianPredictive(mean, covariance, noise, shared=self.noise.to(mean))
