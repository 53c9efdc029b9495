"""The Gaussian process of another network, or of other weights, on the same data."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lingp.inference import Mean
from lingp.linearization.inputs import num_rows
from lingp.models import LinearizedGP
from lingp.models.fitting import FittedData
from lingp.priors import Prior


@torch.no_grad()
def set_weights(net: nn.Module, names: Sequence[str], theta: Tensor) -> None:
    """Write flat weights into the parameters of these names."""
    chosen = [dict(net.named_parameters())[name] for name in names]
    for p, part in zip(chosen, theta.split([p.numel() for p in chosen]), strict=True):
        p.copy_(part.view_as(p))


def refitted(
    given: LinearizedGP, network: nn.Module, prior: Prior, mean: Mean | None = None
) -> LinearizedGP:
    """A `LinearizedGP` with the options of another, conditioned on the same data."""
    data = given.data
    batches = list(_batches(data))
    gp = LinearizedGP(
        network,
        copy.deepcopy(given.likelihood),
        prior=prior,
        parameters=given.linearized.parameter_names,
        inference=given.inference,
        mean=mean or given.mean,
        sites=given._sites,
        dtype=given.dtype,
        memory_budget=given.memory_budget,
    ).fit(
        batches, class_weight=data.class_weight, missing=data.missing, progress=False, prepare=False
    )
    gp.mean_scale = given.laplace.mean_scale
    return gp


def _batches(data: FittedData) -> Iterator[tuple[Any, ...]]:
    """The data as they were given."""
    targets, weights, start = torch.cat(data.given), data.sample_weights, 0
    for x in data.training.inputs:
        rows = slice(start, start + num_rows(x))
        yield (x, targets[rows]) if weights is None else (x, targets[rows], weights[rows])
        start = rows.stop
