"""One weight per class label, brought to one weight per row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from lingp.runtime.shards import Shards

ClassWeight = Mapping[int, float] | Sequence[float] | Tensor | Literal["balanced"]


def class_factors(
    class_weight: ClassWeight,
    labels: Tensor,
    num_classes: int,
    weights: Tensor | None,
    shards: Shards | None = None,
) -> Tensor:
    """The factor that each row's weight takes from its label, (N,).

    "balanced" is n / (K n_k) for a label that n_k of n rows have, K of them occurring (as in
    scikit-learn); a row counts as often as its weight says.

    Parameters
    ----------
    class_weight
        "balanced"; a mapping from label to weight, 1 for labels it leaves out; or one weight for
        each of the classes.
    labels
        0., 1., ..., NaN where not observed, (N,).
    num_classes
        K.
    weights
        Sample weights, (N,); ones by default.
    shards
        Where rows are spread over processes; all of them are counted.
    """
    observed = ~labels.isnan()
    index = torch.where(observed, labels, 0.0).long()
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise ValueError(
                'class_weight: expected "balanced", a mapping from label to weight or a sequence '
                f"of {num_classes} weights, got {class_weight!r}"
            )
        counted = observed.to(labels) if weights is None else observed * weights
        counts = labels.new_zeros(num_classes).index_add(0, index, counted)
        counts = (shards or Shards.single()).sum(counts)
        occurring = counts > 0
        mean = counts.sum() / occurring.sum()
        table = torch.where(occurring, mean / counts, 1.0)
    else:
        table = torch.tensor(_as_list(class_weight, num_classes)).to(labels)
    return torch.where(observed, table[index], 1.0)


def _as_list(
    class_weight: Mapping[int, float] | Sequence[float] | Tensor, num_classes: int
) -> list[float]:
    """One checked weight per class."""
    if isinstance(class_weight, Mapping):
        unknown = [label for label in class_weight if label not in range(num_classes)]
        if unknown:
            raise ValueError(
                f"class_weight: {unknown[0]!r} is not one of the labels 0 .. {num_classes - 1}"
            )
        given = [class_weight.get(label, 1.0) for label in range(num_classes)]
    else:
        given = list(class_weight)
    if len(given) != num_classes:
        raise ValueError(
            f"class_weight: expected one weight for each of {num_classes} classes, got {len(given)}"
        )
    values = [float(weight) for weight in given]
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError(f"class_weight: expected finite weights >= 0, got {values}")
    return values
