"""Priors of networks that have lost weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from lingp.linearization import LinearizedNetwork
from lingp.priors import Grouped, Layerwise, Prior
from lingp.training.map_loss import variances_of_weights

# of the variance that a weight had: far below rounding, and a finite logarithm still
_OFF = 1e-30


class Switched(Prior):
    """A prior under which some weights are 0: their variance is nothing, their mean 0.

    The weights stay among the parameters, so any network can have it.

    Parameters
    ----------
    base
        A bound prior, whose hyperparameters this one has.
    on
        Which weights are left, (P,).
    """

    columnwise = True
    on: Tensor

    def __init__(self, base: Prior, on: Tensor) -> None:
        super().__init__(torch.where(on.to(base.mean.device), base.mean, 0.0))
        self.base = base
        self.register_buffer("on", on.clone())

    def variances(self) -> Tensor:
        """The variance of each weight, (P,)."""
        each = variances_of_weights(self.base)
        return torch.where(self.on.to(each.device), each, _OFF * each)

    @property
    def precision(self) -> Tensor:
        """The precision of the base; settable."""
        return self.base.precision

    @precision.setter
    def precision(self, value: float | Tensor) -> None:
        self.base.precision = value

    def extra_repr(self) -> str:
        return f"{self.base.extra_repr()}, {int(self.on.sum())} of {len(self.on)} weights on"


@torch.no_grad()
def prior_of_kept(prior: Prior, kept: Tensor, network: LinearizedNetwork) -> Prior:
    """The same prior on a smaller network, which has some of the weights.

    Parameters
    ----------
    prior
        Bound to the network that was cut.
    kept
        Which of its weights the smaller one has, (P,).
    network
        The smaller network.

    Raises
    ------
    TypeError
        If a prior of this kind can't be carried over.
    """
    twin = copy.deepcopy(prior).hold_mean()
    twin.names = twin.shapes = None
    if twin.mean.dim() == 1:
        twin.mean = twin.mean[kept]
    if isinstance(prior, Grouped) and isinstance(twin, Grouped):
        assert prior.group is not None
        groups = prior.group[kept].unique()  # in the order of the tensors, as they are numbered
        raw = prior.raw_precision
        twin.raw_precision = torch.nn.Parameter(raw[groups].clone(), raw.requires_grad)
    if isinstance(twin, (Grouped, Layerwise)):
        twin._by_name = None
    twin.bind_to(network)
    expected = variances_of_weights(prior)[kept]
    if not torch.equal(variances_of_weights(twin), expected):
        raise TypeError(
            f"prior: {type(prior).__name__} can't be carried over to a smaller network; use "
            "Isotropic, Layerwise, UnitWise or Diagonal"
        )
    return twin
