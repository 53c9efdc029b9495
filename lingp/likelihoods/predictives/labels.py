"""Predictives of class labels through a softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lingp.likelihoods.predictives.draws import LatentPredictive
from lingp.likelihoods.predictives.importance import log_evidence, product_or_joint
from lingp.likelihoods.predictives.softmax import LabelMoments
from lingp.likelihoods.targets import split_missing


@dataclass(frozen=True)
class LabelPredictive(LatentPredictive):
    """p(y_n = k) = E softmax(f_n)_k, for one label per datum or L of them.

    Moments are those of the one-hot indicators, (N x L·K); epistemic and aleatoric variance are
    Var p_k(f) and E p_k(f) (1 - p_k(f)), whose sum is p_k (1 - p_k). Probabilities are those of
    each label on its own; the joint log density of several labels that f couples is
    quasi-Monte-Carlo with the joint covariance, whichever way probabilities are computed.

    Attributes
    ----------
    num_classes
        K.
    method
        (means (B x K), covariances (B x K x K)) -> moments of the softmax.
    """

    num_classes: int
    method: Callable[[Tensor, Tensor], LabelMoments]

    @cached_property
    def _labels(self) -> int:
        """L."""
        return self.location.shape[-1] // self.num_classes

    @cached_property
    def _softmax(self) -> LabelMoments:
        """Of every label, (N·L x K)."""
        shape = (-1, self._labels, self.num_classes)
        blocks = self.covariance.unflatten(-1, shape[1:]).unflatten(-3, shape[1:])
        blocks = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)  # (N, L, K, K)
        return self.method(self.location.reshape(shape).flatten(0, 1), blocks.flatten(0, 1))

    @property
    def mean(self) -> Tensor:
        return self._softmax.log_probs.exp().reshape(self.location.shape)

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        p, epistemic = self.mean, self._softmax.epistemic.reshape(self.location.shape)
        return p, epistemic, (p * (1 - p) - epistemic).clamp(min=0)

    def log_prob(self, y: Tensor) -> Tensor:
        labels, observed = split_missing(y)
        log_probs = self._softmax.log_probs.unflatten(0, (-1, self._labels))
        each = log_probs.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
        same = torch.eye(self._labels, dtype=torch.bool, device=each.device)
        same = same.repeat_interleave(self.num_classes, 0).repeat_interleave(self.num_classes, 1)

        def joint(rows: Tensor) -> Tensor:
            return log_evidence(
                self.likelihood, y[rows], self.location[rows], self.covariance[rows]
            )

        coupling = self.covariance.masked_fill(same, 0.0)
        return product_or_joint(torch.where(observed, each, 0.0), observed, coupling, joint)
