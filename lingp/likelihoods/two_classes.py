"""A softmax over two classes is a sigmoid of their difference: quadrature in one dimension."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lingp.likelihoods.bernoulli import Bernoulli
from lingp.likelihoods.predictives.elementwise import ElementwisePredictive


def integrate_two(mean: Tensor, covariance: Tensor) -> TwoClassMoments:
    """Moments of softmax(f) by adaptive quadrature over f_1 - f_0.

    Parameters
    ----------
    mean
        (B x 2).
    covariance
        (B x 2 x 2).
    """
    difference = mean[:, 1:] - mean[:, :1]
    spread = covariance[:, 1, 1] + covariance[:, 0, 0] - 2 * covariance[:, 0, 1]
    return TwoClassMoments(ElementwisePredictive(Bernoulli(), difference, spread[:, None, None]))


@dataclass(frozen=True)
class TwoClassMoments:
    """`LabelMoments` of two classes, each by its own quadrature, when it is asked for.

    Attributes
    ----------
    second
        The predictive of the second class's indicator.
    """

    second: ElementwisePredictive

    @cached_property
    def log_probs(self) -> Tensor:
        """Log E p, (B x 2)."""
        ones = torch.ones_like(self.second.location)
        return torch.cat([self.second.log_prob_each(label * ones) for label in (0, 1)], -1)

    @property
    def epistemic(self) -> Tensor:
        """Var p, (B x 2)."""
        return self.second.epistemic_variance.expand(-1, 2)
