"""What `LinearizedGP.predict` and `leave_one_out` return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lingp.likelihoods import Predictive
from lingp.likelihoods.predictives.draws import AffineMixture, quasi_normal
from lingp.models.layout import TargetLayout

_NUM_NODES = 1024


@dataclass(frozen=True)
class Prediction:
    """Predictive distribution of the targets at n inputs, each row on its own.

    Draws, medians and intervals have the shape of the targets. Moments have it too, except that
    those of class labels are the moments of the one-hot indicators, (n, K). A prediction keeps the
    hyperparameters it was made with.

    Attributes
    ----------
    predictive
        The distribution over flat targets.
    layout
        Their shapes, and the likelihood.
    mean_of
        Whose mean it is: "network" or "refit".
    latent_mean, latent_covariance
        Of the outputs of f at each row, flat, (n x C) and (n x C x C).
    mean_scale
        s: class labels are averaged around s times the mean; 1 for other targets.
    """

    predictive: Predictive
    layout: TargetLayout
    mean_of: str
    latent_mean: Tensor
    latent_covariance: Tensor
    mean_scale: float = field(default=1.0, kw_only=True)

    @property
    def mean(self) -> Tensor:
        """E y."""
        return self.layout.moments(self.predictive.mean)

    @property
    def median(self) -> Tensor:
        """Median of each target, in the shape of the targets.

        With `Heteroscedastic` noise the mean can be ruled by a far tail of the precision, where it
        comes near zero; the median is not. Class labels have none.
        """
        return self.layout.values(self.predictive.median)

    @property
    def variance(self) -> Tensor:
        """Var y = epistemic + aleatoric variance."""
        return self.layout.moments(self.predictive.variance)

    @property
    def epistemic_variance(self) -> Tensor:
        """Var E[y | f]: the part of the variance that more data would take away."""
        return self.layout.moments(self.predictive.epistemic_variance)

    @property
    def aleatoric_variance(self) -> Tensor:
        """E Var[y | f]: the part of the variance that is noise."""
        return self.layout.moments(self.predictive.aleatoric_variance)

    @property
    def stddev(self) -> Tensor:
        """Square root of `variance`."""
        return self.variance.sqrt()

    @property
    def probs(self) -> Tensor:
        """Class probabilities where targets are labels, (n, K), or (n, *labels, K) for several."""
        num_labels = self.layout.likelihood.num_labels(self.layout.output_shape)
        if num_labels is None:
            return self.layout.moments(self.predictive.probs)
        p = self.predictive.mean
        return p if p.shape[-1] == num_labels else torch.cat([1 - p, p], -1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the class probabilities in nats, between 0 and log K, (n, *labels)."""
        return _entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        """The part of the entropy of class labels that more data would take away, (n, *labels).

        H[y] - E H[y | f], the mutual information of label and function, in nats; by
        quasi-Monte-Carlo over f.
        """
        num_classes = self.probs.shape[-1]
        location, likelihood = self.mean_scale * self.latent_mean, self.layout.likelihood
        normal = quasi_normal(_NUM_NODES, location)
        mixture = AffineMixture(likelihood, location, self.latent_covariance, normal)

        def conditional(nodes: Tensor, rows: slice) -> Tensor:
            p = likelihood.conditional_mean(nodes)
            p = torch.cat([1 - p, p], -1) if p.shape[-1] == 1 else p
            return torch.cat([p, _entropy(p.unflatten(-1, (-1, num_classes)))], -1)

        # the same nodes for both terms: the difference is never negative
        average = mixture.average(conditional)
        num_labels = average.shape[-1] // (num_classes + 1)
        probs, within = average.split([num_labels * num_classes, num_labels], -1)
        total = _entropy(probs.unflatten(-1, (num_labels, num_classes)))
        return self.layout.values((total - within).clamp(min=0))

    def log_prob(self, y: Any) -> Tensor:
        """log p(y_n) of each row, jointly over its targets, (n,).

        NaN targets count as not observed where the likelihood allows that.
        """
        return self.predictive.log_prob(self.layout.checked(y))

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds y with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level: expected a probability between 0 and 1, got {level}")
        lower, upper = self.predictive.interval(level)
        return self.layout.values(lower), self.layout.values(upper)

    def sample(
        self, num_samples: int | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws of y, rows independent of each other; `LinearizedGP.sample` draws functions.

        Parameters
        ----------
        num_samples
            Leading dimension of the result; none by default.
        generator
            Source of randomness; torch's global one by default.
        """
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"num_samples: expected at least 1, got {num_samples}")
        draws = self.layout.values(self.predictive.sample(num_samples or 1, generator))
        return draws[0] if num_samples is None else draws

    def __repr__(self) -> str:
        whose = "the network" if self.mean_of == "network" else "the refitted model"
        return (
            f"{type(self).__name__}({self.layout.num_rows} rows, output shape "
            f"{self.layout.output_shape}, mean of {whose})"
        )


def _entropy(probs: Tensor) -> Tensor:
    """-Σ_k p_k log p_k over the last axis."""
    return -torch.special.xlogy(probs, probs).sum(-1)


@dataclass(frozen=True, repr=False)
class LeaveOneOutPrediction(Prediction):
    """Predictive distribution of each training target given all other rows.

    Attributes
    ----------
    targets
        The training targets, checked and flat.
    """

    targets: Tensor

    @property
    def log_predictive(self) -> Tensor:
        """log p(y_n | all other rows) of each training target, (N,)."""
        return self.predictive.log_prob(self.targets)
