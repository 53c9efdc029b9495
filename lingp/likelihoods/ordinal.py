"""Ordered class labels: one latent output and K - 1 cutpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lingp.likelihoods.base import Hyperparameter, Likelihood
from lingp.likelihoods.elementwise import ElementwiseLikelihood
from lingp.likelihoods.targets import check_labels
from lingp.runtime.described import described, same


@described(num_classes=same("num_classes"))
class Ordinal(ElementwiseLikelihood):
    """P(y <= k | f) = σ(b_k - f),   b_0 < b_1 < .. < b_{K-2}: the cumulative logit model.

    With a = b_y - f and c = b_{y-1} - f (infinite for the last and the first class),

        p(y | f) = σ(a) - σ(c) = σ(a) σ(-c) (1 - e^{c - a})
        r = σ(c) - σ(-a),     Λ = σ(a) σ(-a) + σ(c) σ(-c)

    where a - c doesn't depend on f: log p is concave in f, Λ is the exact Hessian and neither
    difference of the first form is ever taken (McCullagh, JRSS B 42, 1980, sections 2.2 and 5).

    Every output of the network has its own label 0..K-1; they share the cutpoints. Moments are
    those of the K one-hot indicators of each label. Missing labels are NaN.

    Parameters
    ----------
    num_classes
        K >= 3. Cutpoints start where f = 0 makes all classes equally likely.
    cutpoints
        Instead of `num_classes`: the K - 1 increasing cutpoints the network was trained with.

    Notes
    -----
    The cutpoints are hyperparameters: `first_cutpoint`, and the distances between them
    (`raw_increments`, positive). Adding a constant to all cutpoints and to the network's output
    bias changes nothing, nor does a common factor of cutpoints and outputs change which class is
    likeliest; freeze `first_cutpoint` where the bias should carry the location.
    """

    cdf_support = "counts"

    saturates = True

    first_cutpoint: torch.nn.Parameter
    raw_increments: torch.nn.Parameter

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        cutpoints: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__()
        if (num_classes is None) == (cutpoints is None):
            raise TypeError("num_classes, cutpoints: give one of them")
        if cutpoints is None:
            if num_classes is None or num_classes < 3:
                raise ValueError(
                    f"num_classes: expected at least 3, got {num_classes}; use Bernoulli for two"
                )
            cutpoints = torch.linspace(0, 1, num_classes + 1, dtype=torch.float64)[1:-1].logit()
        values = as_cutpoints(cutpoints)
        self.register_parameter("first_cutpoint", torch.nn.Parameter(values[0].clone()))
        self.register_positive("increments", values.diff())

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.raw_increments) + 2

    increments = Hyperparameter()
    """Distances between neighbouring cutpoints, (K-2,); settable."""

    @property
    def cutpoints(self) -> Tensor:
        """b, (K-1,), increasing; settable."""
        steps = torch.cat([self.first_cutpoint.reshape(1), self.increments])
        return steps.cumsum(0)

    @cutpoints.setter
    def cutpoints(self, value: Sequence[float] | Tensor) -> None:
        values = as_cutpoints(value).to(self.first_cutpoint)
        if len(values) != self.num_classes - 1:
            raise ValueError(
                f"cutpoints: {self.num_classes} classes have {self.num_classes - 1} cutpoints, "
                f"got {len(values)}"
            )
        self.initialize(first_cutpoint=values[0])
        self.increments = values.diff()

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return check_labels(y, output_shape, self.num_classes, dtype)

    def moment_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*(() if output_shape == (1,) else output_shape), self.num_classes)

    def num_labels(self, output_shape: tuple[int, ...]) -> int | None:
        return self.num_classes if math.prod(output_shape) == 1 else None

    def label_probs(self, moments: Tensor) -> Tensor:
        return moments.unflatten(-1, (-1, self.num_classes))

    def with_scaled_mean(self, mean: Tensor, scale: float) -> tuple[Likelihood, Tensor]:
        if scale == 1:
            return self, mean
        scaled = Ordinal(cutpoints=scale * self.cutpoints.detach())
        return scaled.requires_grad_(False).to(self.first_cutpoint.device), scale * mean

    def _bounds(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """a and c, finite everywhere, and where they are meant."""
        labels, cutpoints = y.long(), self.cutpoints.to(f)
        edge = cutpoints[:1]
        upper = torch.cat([cutpoints, edge])[labels] - f
        lower = torch.cat([edge, cutpoints])[labels] - f
        return upper, lower, labels < len(cutpoints), labels > 0

    def log_prob_each(self, y: Tensor, f: Tensor) -> Tensor:
        upper, lower, has_upper, has_lower = self._bounds(y, f)
        log_gap = torch.nn.functional.pad((-torch.expm1(-self.increments)).log(), (1, 1)).to(f)
        below = torch.where(has_upper, logsigmoid(upper), 0.0)
        above = torch.where(has_lower, logsigmoid(-lower), 0.0)
        return below + above + log_gap[y.long()]

    def residual_each(self, y: Tensor, f: Tensor) -> Tensor:
        upper, lower, has_upper, has_lower = self._bounds(y, f)
        up = torch.where(has_lower, torch.sigmoid(lower), 0.0)
        return up - torch.where(has_upper, torch.sigmoid(-upper), 0.0)

    def root_each(self, y: Tensor, f: Tensor) -> Tensor:
        upper, lower, has_upper, has_lower = self._bounds(y, f)
        nothing = -torch.inf
        above = torch.where(has_upper, logsigmoid(upper) + logsigmoid(-upper), nothing)
        below = torch.where(has_lower, logsigmoid(lower) + logsigmoid(-lower), nothing)
        return (0.5 * torch.logaddexp(above, below)).exp()

    def _probs(self, f: Tensor) -> Tensor:
        """p(y = k | f), (... x N x C x K)."""
        labels = torch.arange(self.num_classes, dtype=f.dtype, device=f.device)
        return self.log_prob_each(labels, f.unsqueeze(-1)).exp()

    def conditional_mean(self, f: Tensor) -> Tensor:
        return self._probs(f).flatten(-2)

    def conditional_variance(self, f: Tensor) -> Tensor:
        p = self._probs(f)
        return (p * (1 - p)).flatten(-2)

    def cdf_each(self, y: Tensor, f: Tensor) -> Tensor:
        upper, _, has_upper, _ = self._bounds(y.clamp(max=self.num_classes - 1), f)
        return torch.where(has_upper, torch.sigmoid(upper), 1.0)

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        uniform = torch.rand(f.shape, generator=generator, dtype=f.dtype, device=f.device)
        utility = f + uniform.logit()  # logistic noise: y counts the cutpoints below
        return (utility.unsqueeze(-1) > self.cutpoints.to(f)).sum(-1).to(f.dtype)

    def extra_repr(self) -> str:
        return f"cutpoints={[round(b, 4) for b in self.cutpoints.tolist()]}"


def as_cutpoints(value: Sequence[float] | Tensor) -> Tensor:
    """Increasing finite numbers, (K-1,) float64, or an error that says what they are not."""
    values = torch.as_tensor(value, dtype=torch.float64).detach()
    if values.dim() != 1 or len(values) < 2:
        raise ValueError(
            "cutpoints: expected at least two increasing numbers (three classes), got "
            f"{values.tolist()}; use Bernoulli for two classes"
        )
    if not bool(values.isfinite().all()) or not bool((values.diff() > 0).all()):
        raise ValueError(f"cutpoints: expected finite increasing numbers, got {values.tolist()}")
    return values
