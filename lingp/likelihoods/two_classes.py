"""A softmax over two classes is a sigmoid of their difference: quadrature in one dimension."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lingp.likelihoods.bernoulli import Bernoulli
from lingp.likelihoods.predictives.elementwise import ElementwisePredictive
from lingp.likelihoods.predictives.softmax import SoftmaxMoments


def integrate_two(mean: Tensor, covariance: Tensor) -> SoftmaxMoments:
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
    predictive = ElementwisePredictive(Bernoulli(), difference, spread[:, None, None])
    ones = torch.ones_like(difference)
    log_probs = [predictive.log_prob_each(label * ones) for label in (0, 1)]
    epistemic = predictive.epistemic_variance.expand(-1, 2)
    entropies = predictive.expectation(_binary_entropy).squeeze(-1)
    return SoftmaxMoments(torch.cat(log_probs, -1), epistemic, entropies)


def _binary_entropy(f: Tensor) -> Tensor:
    """Of σ(f), elementwise."""
    return -(f.sigmoid() * logsigmoid(f) + (-f).sigmoid() * logsigmoid(-f))
