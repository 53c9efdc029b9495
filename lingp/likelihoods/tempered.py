"""A likelihood raised to a power."""

from __future__ import annotations

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from lingp.likelihoods.base import Hyperparameter, Likelihood
from lingp.likelihoods.named import as_likelihood
from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.roots import CurvatureRoot
from lingp.runtime.described import described

_SAME = (
    "methods",
    "allows_missing",
    "has_known",
    "has_order",
    "is_quadratic",
    "limits_fit",
    "saturates",
)


@described()
class Tempered(Likelihood):
    """p(y | f)^{1/T}: the posterior of data counted 1/T times each.

        log p / T,     r / T,     R / √T

    Only inference is tempered: moments, samples and the predictive are those of p(y | f).

    The evidence can't choose T where targets are discrete. p^{1/T} isn't normalised over y, log p
    is never positive, and both log p / T and -½ log det(I + ΦΦᵀ / T) grow with T up to the T = ∞
    that ignores the data. So T is fixed unless `learn`; choose it by validation or leave-one-out,
    which score the predictive.

    Parameters
    ----------
    likelihood
        What to temper: a likelihood or its name. A quadratic one stays quadratic.
    temperature
        T > 0, a hyperparameter (`raw_temperature`); below one is a cold posterior.
    learn
        Whether hyperparameter optimisation moves T.
    """

    raw_temperature: torch.nn.Parameter

    def __init__(
        self, likelihood: Likelihood | str, temperature: float = 1.0, *, learn: bool = False
    ) -> None:
        super().__init__()
        self.likelihood = as_likelihood(likelihood)
        for name in _SAME:
            setattr(self, name, getattr(self.likelihood, name))
        self.register_positive("temperature", temperature, requires_grad=learn)
        if self.raw_temperature.dim() > 0:
            raise ValueError(f"temperature: expected one number, got {temperature}")

    temperature = Hyperparameter()
    """T, 0-d; settable."""

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.likelihood.check_targets(y, output_shape, dtype)

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.likelihood.target_shape(output_shape)

    def moment_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.likelihood.moment_shape(output_shape)

    def num_labels(self, output_shape: tuple[int, ...]) -> int | None:
        return self.likelihood.num_labels(output_shape)

    def label_probs(self, moments: Tensor) -> Tensor:
        return self.likelihood.label_probs(moments)

    def with_scaled_mean(self, mean: Tensor, scale: float) -> tuple[Likelihood, Tensor]:
        return self.likelihood.with_scaled_mean(mean, scale)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self.likelihood.log_prob(y, f) / self.temperature.to(f)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        return self.likelihood.residual(y, f) / self.temperature.to(f)

    def whitened_residual(self, y: Tensor, f: Tensor) -> Tensor:
        return self.likelihood.whitened_residual(y, f) * self.temperature.to(f).rsqrt()

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        return self.likelihood.curvature_root(y, f).scaled(self.temperature.to(f).rsqrt())

    def average_curvature(self, y: Tensor, f: Tensor) -> Tensor:
        return self.likelihood.average_curvature(y, f) / self.temperature.to(f)

    def forward(self, function_dist: MultivariateNormal) -> MultivariateNormal:
        """`likelihood(gp(X))`, of the targets: tempering is a matter of inference only."""
        return self.untempered(function_dist)

    @property
    def untempered(self) -> Likelihood:
        return self.likelihood._at(self.known).untempered

    def conditional_mean(self, f: Tensor) -> Tensor:
        return self.untempered.conditional_mean(f)

    def conditional_variance(self, f: Tensor) -> Tensor:
        return self.untempered.conditional_variance(f)

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return self.untempered.sample(f, generator=generator)

    def predictive(
        self,
        mean: Tensor,
        covariance: Tensor,
        method: str | None = None,
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Predictive:
        return self.untempered.predictive(
            mean, covariance, method, num_samples=num_samples, generator=generator
        )

    def extra_repr(self) -> str:
        return f"temperature={self.temperature.item():.4g}"
