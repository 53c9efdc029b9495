"""Labels 0 and 1, one logit each."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lingp.likelihoods.elementwise import ElementwiseLikelihood
from lingp.likelihoods.named import named
from lingp.likelihoods.targets import check_values, flatten_targets
from lingp.runtime.described import described


@described()
@named("bernoulli")
class Bernoulli(ElementwiseLikelihood):
    """log p(y | f) = Σ_c log σ(s_c f_c),   s = 2y - 1.

        r = s σ(-s f) = y - σ(f),     Λ = diag(σ(f) σ(-f))

    Targets are 0 or 1 (or bool), in the shape of the output: several outputs are several labels,
    independent given f. Missing targets are NaN.
    """

    cdf_support = "counts"

    saturates = True

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        flat = flatten_targets(y, output_shape, dtype, allow_missing=True)
        check_values(flat, (flat == 0) | (flat == 1), "labels 0 or 1")
        return flat

    def num_labels(self, output_shape: tuple[int, ...]) -> int | None:
        return 2 if math.prod(output_shape) == 1 else None

    def label_probs(self, moments: Tensor) -> Tensor:
        return torch.stack([1 - moments, moments], -1)

    def log_prob_each(self, y: Tensor, f: Tensor) -> Tensor:
        return logsigmoid((2 * y - 1) * f)

    def residual_each(self, y: Tensor, f: Tensor) -> Tensor:
        sign = 2 * y - 1
        return sign * torch.sigmoid(-sign * f)

    def root_each(self, y: Tensor, f: Tensor) -> Tensor:
        return (0.5 * (logsigmoid(f) + logsigmoid(-f))).exp()

    def conditional_mean(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f)

    def conditional_variance(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f) * torch.sigmoid(-f)

    def cdf_each(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.where(y >= 1, 1.0, torch.sigmoid(-f))

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(torch.sigmoid(f), generator=generator)
