"""Signs that predictions of class labels will disappoint, found when the posterior is made."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from lingp.inference import LinearizedLaplace
from lingp.inference.data_term import DataTerm
from lingp.inference.mean_scale import Matched, flattening

_WIDE = 0.9  # share of the prior's variance that data left, on average
_FLAT = 0.1  # nats per label that the average takes
_LEARNED = 0.01  # share of labels that a network gets wrong which has learned them
_LEAST_ROWS = 30  # fewer tell nothing


class PosteriorWarning(UserWarning):
    """Predictions from this posterior will likely be worse than they need be."""


def warn_of_posterior(laplace: LinearizedLaplace) -> None:
    """Say what about the posterior of class labels is wrong, and what to do."""
    with torch.no_grad():
        for doubt in _doubts(laplace):
            warnings.warn(doubt, PosteriorWarning, stacklevel=4)


def warn_of_evidence(laplace: LinearizedLaplace, evidence: float) -> None:
    """Say so where labels are less probable than with the same probabilities for all rows."""
    with torch.no_grad():
        constant = constant_log_prob(laplace.data_term)
    if evidence < constant:
        warnings.warn(
            f"the largest log marginal likelihood found, {evidence:.6g}, is below {constant:.6g}, "
            "the log density of labels that have the same probabilities in all rows: it is no "
            "guide here. Choose hyperparameters by optimize_hyperparameters(validation=(X, y)), "
            "with rows that the network hasn't seen",
            PosteriorWarning,
            stacklevel=3,
        )


def constant_log_prob(data: DataTerm) -> float:
    """Σ_n w_n log p(y_n) with the frequencies of the labels for probabilities."""
    labels = data.targets
    weights = labels.new_ones(len(labels)) if data.weights is None else data.weights
    kinds = torch.arange(1 + int(data.shards.largest(float(labels.nan_to_num().max()))))
    found = 0.0
    for column in labels.unbind(1):
        counted = (column.unsqueeze(-1) == kinds.to(labels)) * weights.unsqueeze(-1)
        counts = data.shards.sum(counted.sum(0))
        shares = counts / counts.sum().clamp(min=torch.finfo(counts.dtype).tiny)
        found += float(torch.special.xlogy(counts, shares).sum())
    return found


def _doubts(laplace: LinearizedLaplace) -> Iterator[str]:
    data, mean, posterior = laplace.data_term, laplace.mean_outputs(), laplace.posterior()
    lost = flattening(data, mean, posterior, 1.0)
    if data.shards.num_rows < _LEAST_ROWS or lost < _FLAT:
        return
    left = sum(_total_variance(part) for part in posterior.at_data if part is not None)
    share = data.shards.total(left) / data.shards.total(_total_variance(laplace.prior_covariance()))
    if share > _WIDE:
        cure = "Choose the prior by optimize_hyperparameters(validation=(X, y))"
        if laplace.sites != "expected":
            cure = 'Leave sites at "auto", which averages what they say over the posterior'
        yield (
            f"the posterior has {share:.0%} of the prior's variance at the training data, as if "
            "most of them had never been seen: the network is so sure of its labels that they say "
            f"next to nothing about the weights. {cure}"
        )
    if not isinstance(laplace.mean_scale, Matched):
        lost = flattening(data, mean, posterior, laplace.mean_scale)
        if lost > _FLAT:
            yield (
                "averaged over what the data leave open, predictions at rows left out are flatter "
                f"than the network's by {lost:.2g} nats per row (mean_scale={laplace.mean_scale:g})"
                '. mean_scale="matched" makes them about as sure as the network; '
                "optimize_hyperparameters(validation=(X, y)) as sure as they should be"
            )
        return
    right, count = _learned(data, mean)
    weights = laplace.training.num_parameters
    if count < weights and right >= (1 - _LEARNED) * count:
        yield (
            f"the network, of {weights} weights, has learned {right:.0f} of {count:.0f} labels "
            "without error, so they don't tell whether it is too sure. Predictions are about as "
            f"sure as the network where there are data (mean scale {laplace.scale_of_mean():.3g}); "
            f"the plain average would be {lost:.2g} nats per row less sure. Rows that the network "
            "hasn't seen choose between the two: optimize_hyperparameters(validation=(X, y))"
        )


def _total_variance(covariance: Tensor) -> float:
    return float(covariance.diagonal(dim1=-2, dim2=-1).sum())


def _learned(data: DataTerm, mean: Tensor) -> tuple[float, float]:
    """How many labels the network gets right, and how many there are."""
    likelihood, labels = data.likelihood, data.targets
    predicted = likelihood.label_probs(likelihood.conditional_mean(mean)).argmax(-1)
    observed = ~labels.isnan()
    if data.weights is not None:
        observed &= (data.weights > 0).unsqueeze(-1)
    right = float(((predicted == labels) & observed).sum())
    return data.shards.total(right), data.shards.total(float(observed.sum()))
