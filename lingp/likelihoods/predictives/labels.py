"""Predictives of class labels through a softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor

from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.predictives.conditional import Conditional
from lingp.likelihoods.predictives.draws import AffineMixture, draw_latents
from lingp.likelihoods.predictives.importance import log_evidence, product_or_joint
from lingp.likelihoods.predictives.softmax import LabelMoments
from lingp.likelihoods.targets import split_missing


@dataclass(frozen=True)
class LabelPredictive(Predictive):
    """p(y_n = k) = E softmax(f_n)_k, for one label per datum or L of them.

    Moments are those of the one-hot indicators, (N x L·K); epistemic and aleatoric variance are
    Var p_k(f) and E p_k(f) (1 - p_k(f)), whose sum is p_k (1 - p_k). Probabilities are those of
    each label on its own; the joint log density of several labels that f couples is
    quasi-Monte-Carlo with the joint covariance, whichever way probabilities are computed.

    Attributes
    ----------
    likelihood
        Gives p(y | f).
    location
        Mean of f, (N x L·K).
    covariance
        (N x L·K x L·K), of any rank.
    num_classes
        K.
    method
        (means (B x K), covariances (B x K x K)) -> moments of the softmax.
    """

    likelihood: Conditional
    location: Tensor
    covariance: Tensor
    num_classes: int
    method: Callable[[Tensor, Tensor], LabelMoments]

    @cached_property
    def _labels(self) -> int:
        """L."""
        return self.location.shape[-1] // self.num_classes

    @cached_property
    def _moments(self) -> LabelMoments:
        """Of every label, (N·L x K)."""
        shape = (-1, self._labels, self.num_classes)
        blocks = self.covariance.unflatten(-1, shape[1:]).unflatten(-3, shape[1:])
        blocks = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)  # (N, L, K, K)
        return self.method(self.location.reshape(shape).flatten(0, 1), blocks.flatten(0, 1))

    @property
    def mean(self) -> Tensor:
        return self._moments.log_probs.exp().reshape(self.location.shape)

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (N x K), or (N x L·K) for several labels per datum."""
        return self.mean

    @property
    def variance(self) -> Tensor:
        return self.epistemic_variance + self.aleatoric_variance

    @property
    def epistemic_variance(self) -> Tensor:
        return self._moments.epistemic.reshape(self.location.shape)

    @property
    def aleatoric_variance(self) -> Tensor:
        p = self.mean
        return (p * (1 - p) - self.epistemic_variance).clamp(min=0)

    @property
    def entropy(self) -> Tensor:
        """Of each label's probabilities, (N x L)."""
        log_probs = self._moments.log_probs
        return -(log_probs.exp() * log_probs).sum(-1).reshape(-1, self._labels)

    @property
    def expected_entropy(self) -> Tensor:
        """E of the entropy of softmax(f), (N x L): what is left once f is known."""
        return self._moments.expected_entropy.reshape(-1, self._labels)

    @property
    def mutual_information(self) -> Tensor:
        """Between each label and f, (N x L): entropy less its expectation."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    def log_prob(self, y: Tensor) -> Tensor:
        labels, observed = split_missing(y)
        log_probs = self._moments.log_probs.unflatten(0, (-1, self._labels))
        each = log_probs.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
        same = torch.eye(self._labels, dtype=torch.bool, device=each.device)
        same = same.repeat_interleave(self.num_classes, 0).repeat_interleave(self.num_classes, 1)

        def joint(rows: Tensor) -> Tensor:
            return log_evidence(
                self.likelihood, y[rows], self.location[rows], self.covariance[rows]
            )

        coupling = self.covariance.masked_fill(same, 0.0)
        return product_or_joint(torch.where(observed, each, 0.0), observed, coupling, joint)

    def interval(self, level: float) -> NoReturn:
        refuse_interval()

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        f = draw_latents(self.location, self.covariance, num_samples, generator)
        return self.likelihood.sample(f, generator=generator)


@dataclass(frozen=True)
class SampledLabels(AffineMixture):
    """p(y_n = k) averaged over random draws of f, with their joint covariance."""

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (N x K), or (N x L·K) for several labels per datum."""
        return self.mean

    @cached_property
    def _labels(self) -> int:
        """L."""
        num_classes: int | None = getattr(self.likelihood, "num_classes", None)
        return 1 if num_classes is None else self.location.shape[-1] // num_classes

    @property
    def entropy(self) -> Tensor:
        """Of each label's probabilities, (N x L)."""
        return _entropy(self.probs, self._labels)

    @property
    def expected_entropy(self) -> Tensor:
        """E of the entropy of softmax(f), (N x L): what is left once f is known."""
        return self.average(
            lambda nodes, _: _entropy(self.likelihood.conditional_mean(nodes), self._labels)
        )

    @property
    def mutual_information(self) -> Tensor:
        """Between each label and f, (N x L): entropy less its expectation."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    def interval(self, level: float) -> NoReturn:
        refuse_interval()


def _entropy(probs: Tensor, num_labels: int) -> Tensor:
    """(... x L·K) -> (... x L)."""
    return -torch.special.xlogy(probs, probs).unflatten(-1, (num_labels, -1)).sum(-1)


def refuse_interval() -> NoReturn:
    """Classes have no order."""
    raise TypeError("interval: class labels have no order, so no interval; use probs")
