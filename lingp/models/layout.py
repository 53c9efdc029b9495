"""Targets and moments of n rows, between the user's shapes and flat tensors."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lingp.likelihoods import Likelihood
from lingp.models.intake import as_tensor


@dataclass(frozen=True)
class TargetLayout:
    """What the targets of n predicted rows look like.

    Attributes
    ----------
    likelihood
        As it was when the prediction was made, at the known quantities of the targets if they have
        any.
    output_shape
        Shape of the network's output for one row.
    num_rows
        n.
    dtype, device
        Of the predictions.
    """

    likelihood: Likelihood
    output_shape: tuple[int, ...]
    num_rows: int
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def around(
        mean: Tensor,
        likelihood: Likelihood,
        output_shape: tuple[int, ...],
        known: Tensor | None,
        mean_scale: float,
    ) -> tuple[TargetLayout, Tensor]:
        """The layout of rows with these mean outputs, and the mean that is averaged around.

        Parameters
        ----------
        mean
            (n x C).
        likelihood
            It is copied: a prediction doesn't change with the hyperparameters later.
        output_shape
            As above.
        known
            Known quantities of the targets, (n x T), if any.
        mean_scale
            s: class labels are averaged around s times the mean.
        """
        likelihood = copy.deepcopy(likelihood.untempered).requires_grad_(False)
        likelihood, location = likelihood.at(known).with_scaled_mean(mean, mean_scale)
        layout = TargetLayout(likelihood, output_shape, len(mean), mean.dtype, mean.device)
        return layout, location

    def moments(self, flat: Tensor) -> Tensor:
        """(n x M) in the shape of the moments."""
        return flat.reshape(len(flat), *self.likelihood.moment_shape(self.output_shape))

    def values(self, flat: Tensor) -> Tensor:
        """(... x n x T) in the shape of the targets, without an axis for known quantities."""
        shape = self.likelihood.target_shape(self.output_shape)
        if math.prod(shape) != flat.shape[-1]:
            shape = shape[:-1]
        return flat.reshape(*flat.shape[:-1], *shape)

    def checked(self, y: Any) -> Tensor:
        """The user's targets in the form likelihoods take; known quantities need not be repeated.

        NaN targets are accepted where the likelihood allows them.
        """
        targets = as_tensor(y, "y", missing=self.likelihood.allows_missing)
        if targets.dim() == 0 or len(targets) != self.num_rows:
            raise ValueError(
                f"y: expected one target for each of the {self.num_rows} rows predicted, got shape "
                f"{tuple(targets.shape)}"
            )
        targets = targets.to(self.device)
        known = self.likelihood.known
        if known is not None and targets.numel() == known.numel():
            known = known.reshape(targets.shape)
            targets = torch.stack([targets.to(self.dtype), known], -1)
        return self.likelihood.check_targets(targets, self.output_shape, self.dtype)
