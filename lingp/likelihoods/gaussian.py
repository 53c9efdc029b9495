"""Gaussian noise, one variance for all outputs or one for each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gpytorch.constraints import Interval, Positive
from torch import Tensor

from lingp.likelihoods.base import Likelihood, flatten_targets
from lingp.likelihoods.predictive import GaussianPredictive
from lingp.likelihoods.roots import CurvatureRoot, DiagonalRoot, UniformRoot


class Gaussian(Likelihood):
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
        value = _as_noise(noise)
        constraint = noise_constraint or Positive(transform=torch.exp, inv_transform=torch.log)
        self.register_parameter("raw_noise", torch.nn.Parameter(torch.zeros_like(value)))
        self.register_constraint("raw_noise", constraint)
        if constraint.initial_value is None:
            raw = constraint.inverse_transform(value)
            if not bool(torch.isfinite(raw).all()):
                raise ValueError(f"noise: {value.tolist()} lies outside {constraint}")
            self.initialize(raw_noise=raw)

    @property
    def noise(self) -> Tensor:
        """Noise variance, 0-d or (C,); settable."""
        noise: Tensor = self.raw_noise_constraint.transform(self.raw_noise)
        return noise

    @noise.setter
    def noise(self, value: float | Sequence[float] | Tensor) -> None:
        value = _as_noise(value).to(self.raw_noise).expand_as(self.raw_noise)
        self.initialize(raw_noise=self.raw_noise_constraint.inverse_transform(value))

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        num_outputs = math.prod(output_shape)
        if self.raw_noise.dim() == 1 and len(self.raw_noise) != num_outputs:
            raise ValueError(
                f"noise: has {len(self.raw_noise)} variances, but the network has {num_outputs} "
                "outputs; give one number, or one variance per output"
            )
        return flatten_targets(y, output_shape, dtype)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        noise = self.noise.to(f)
        return -0.5 * ((y - f).square() / noise + (2 * math.pi * noise).log()).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        return (y - f) / self.noise.to(f)

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        root = self.noise.to(f).rsqrt()
        if root.dim() == 0:
            return UniformRoot(root, *f.shape)
        return DiagonalRoot(root.expand_as(f))

    def whitened_residual(self, y: Tensor, f: Tensor) -> Tensor:
        return (y - f) * self.noise.to(f).rsqrt()

    def predictive(self, mean: Tensor, covariance: Tensor) -> GaussianPredictive:
        return GaussianPredictive(mean, covariance, self.noise.to(mean))

    def extra_repr(self) -> str:
        values = self.noise.detach()
        return f"noise={values.item():.4g}" if values.dim() == 0 else f"noise={values.tolist()}"


def _as_noise(noise: float | Sequence[float] | Tensor) -> Tensor:
    try:
        value = torch.as_tensor(noise, dtype=torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"noise: expected a number or one per output, got {type(noise).__name__}"
        ) from error
    if value.dim() > 1:
        raise ValueError(
            f"noise: expected a number or one variance per output (C,), got {tuple(value.shape)}"
        )
    if not bool((torch.isfinite(value) & (value > 0)).all()):
        raise ValueError(f"noise: expected finite positive variances, got {value.tolist()}")
    return value
