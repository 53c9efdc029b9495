"""Student-t noise: outliers have little pull."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gpytorch.constraints import GreaterThan, Interval
from torch import Tensor

from lingp.likelihoods.base import Hyperparameter
from lingp.likelihoods.elementwise import ElementwiseLikelihood
from lingp.likelihoods.named import named
from lingp.likelihoods.special import student_t_cdf
from lingp.likelihoods.targets import flatten_targets
from lingp.runtime.described import described, start


@described(degrees_of_freedom=start("degrees_of_freedom"), scale=start("scale"))
@named("student_t")
class StudentT(ElementwiseLikelihood):
    """y = f + scale · t,  t ~ Student-t with ν degrees of freedom, independently for each output.

        log p = log Γ((ν+1)/2) - log Γ(ν/2) - ½ log(πν) - log scale - (ν+1)/2 log(1 + z²/ν)
        r     = (ν+1) z / (ν + z²) / scale,                 z = (y - f) / scale
        Λ     = (ν+1) / (ν+3) / scale²

    The density isn't log-concave: -∇² log p is negative where z² > ν. Λ is the Fisher information
    E[r²], which depends neither on y nor on f.

    Parameters
    ----------
    degrees_of_freedom
        ν: a number, or one per output (C,); a hyperparameter (`raw_degrees_of_freedom`).
    scale
        A number, or one per output (C,); a hyperparameter (`raw_scale`). The variance of the noise
        is scale² ν / (ν - 2).
    degrees_of_freedom_constraint
        A GPyTorch constraint; by default ν > 2, so that the variance exists. With a lower bound,
        predictive variances are infinite where ν <= 2.
    scale_constraint
        A GPyTorch constraint; positive through `exp` by default.

    References
    ----------
    Lange, Little and Taylor, "Robust statistical modeling using the t distribution", Journal of the
    American Statistical Association 84 (1989), appendix B, for the Fisher information.
    """

    log_concave = False
    cdf_support = "reals"
    limits_fit = True

    raw_degrees_of_freedom: torch.nn.Parameter
    raw_scale: torch.nn.Parameter

    def __init__(
        self,
        degrees_of_freedom: float | Sequence[float] | Tensor = 4.0,
        scale: float | Sequence[float] | Tensor = 1.0,
        *,
        degrees_of_freedom_constraint: Interval | None = None,
        scale_constraint: Interval | None = None,
    ) -> None:
        super().__init__()
        constraint = degrees_of_freedom_constraint or GreaterThan(
            2.0, transform=torch.exp, inv_transform=torch.log
        )
        self.register_positive("degrees_of_freedom", degrees_of_freedom, constraint)
        self.register_positive("scale", scale, scale_constraint)

    degrees_of_freedom = Hyperparameter()
    """ν, 0-d or (C,); settable."""

    scale = Hyperparameter()
    """0-d or (C,); settable."""

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        for name in ("degrees_of_freedom", "scale"):
            self.check_per_output(name, math.prod(output_shape))
        return flatten_targets(y, output_shape, dtype, allow_missing=True)

    def log_prob_each(self, y: Tensor, f: Tensor) -> Tensor:
        freedom, scale = self.degrees_of_freedom, self.scale
        constant = (_log_normaliser(freedom) - scale.log()).to(f)
        ratio = (y - f) / (freedom.sqrt() * scale).to(f)
        return constant - 0.5 * (freedom + 1).to(f) * _log1p_square(ratio)

    def residual_each(self, y: Tensor, f: Tensor) -> Tensor:
        freedom, scale = self.degrees_of_freedom, self.scale
        ratio = (y - f) / (freedom.sqrt() * scale).to(f)
        pull = (freedom + 1) / (freedom.sqrt() * scale)
        return pull.to(f) * _bounded(ratio)

    def root_each(self, y: Tensor, f: Tensor) -> Tensor:
        freedom = self.degrees_of_freedom
        root = ((freedom + 1) / (freedom + 3)).sqrt() / self.scale
        return root.to(f).expand_as(f)

    def conditional_mean(self, f: Tensor) -> Tensor:
        return f

    def conditional_variance(self, f: Tensor) -> Tensor:
        freedom = self.degrees_of_freedom
        exists = freedom > 2
        ratio = freedom / torch.where(exists, freedom - 2, 1.0)
        variance = torch.where(exists, ratio * self.scale.square(), math.inf)
        return variance.to(f).expand_as(f)

    def exact_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        return mean, variance, self.conditional_variance(mean)

    def cdf_each(self, y: Tensor, f: Tensor) -> Tensor:
        scale = self.scale.to(f)
        return student_t_cdf(self.degrees_of_freedom.to(f), (y - f) / scale)

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        # t = √(ν (u^{-2/ν} - 1)) cos 2πv: Bailey, Mathematics of Computation 62 (1994), 779-781
        shape, device = (2, *f.shape), f.device
        u, v = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
        freedom = self.degrees_of_freedom.to(u)
        radius = (freedom * torch.expm1(-2 / freedom * torch.log1p(-u))).sqrt()
        return f + (self.scale.to(u) * radius * torch.cos(2 * math.pi * v)).to(f)

    def extra_repr(self) -> str:
        freedom, scale = self.degrees_of_freedom.tolist(), self.scale.tolist()
        return f"degrees_of_freedom={freedom}, scale={scale}"


def _log_normaliser(freedom: Tensor) -> Tensor:
    """log Γ((ν+1)/2) - log Γ(ν/2) - ½ log(πν).

    For large ν by its asymptotic series, as the difference would cancel: what is left out is below
    1e-18 from ν = 100 on.
    """
    large = freedom > 100
    small = torch.where(large, 100.0, freedom)
    direct = torch.lgamma(0.5 * (small + 1)) - torch.lgamma(0.5 * small)
    direct = direct - 0.5 * (math.pi * small).log()
    x = torch.where(large, freedom, 100.0).reciprocal()
    x2 = x * x
    series = x * (-1 / 4 + x2 * (1 / 24 + x2 * (-1 / 20 + x2 * 17 / 112)))
    return torch.where(large, series - 0.5 * math.log(2 * math.pi), direct)


def _log1p_square(x: Tensor) -> Tensor:
    """log(1 + x²), without overflow."""
    large = x.abs() > 1
    near, far = torch.where(large, 0.0, x), torch.where(large, x, 1.0)
    return torch.where(
        large, 2 * far.abs().log() + far.square().reciprocal().log1p(), near.square().log1p()
    )


def _bounded(x: Tensor) -> Tensor:
    """x / (1 + x²), without overflow."""
    length = torch.hypot(torch.ones_like(x), x)
    return x / length / length
