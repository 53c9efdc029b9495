"""One precision per input unit, or per output unit, of each weight: ARD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import torch
from gpytorch.constraints import Interval
from torch import Tensor

from lingp.priors.base import WeightMean
from lingp.priors.grouped import Grouped
from lingp.runtime.described import described, same


@described(units=same("units"), inputs_first=lambda prior: list(prior._patterns))
class UnitWise(Grouped):
    """Automatic relevance determination: the weights of one unit share a precision.

    With units="inputs" those are the weights that leave an input unit: a column of a weight matrix
    (outputs x inputs), an input channel of a convolution, a row (a word) of an embedding. In the
    first layer their precisions say which inputs matter (MacKay 1994; Neal 1996, section 1.2.3), in
    later layers which hidden units. With units="outputs" they are the weights that enter an output
    unit: a row of a weight matrix, an output channel, a column (a feature) of an embedding.

    Biases, and other tensors of one axis such as the scales of a normalisation layer, have one
    precision per tensor with units="inputs": a bias leaves one unit, which is always on. With
    units="outputs" they have one per entry. Of tensors with more axes the first counts as outputs,
    the second as inputs.

    Parameters
    ----------
    precision
        One number for all units to start from, a tensor (G,) with one per unit, or a mapping from
        the name of each parameter tensor to a number or to one per unit of it.
    units
        "inputs" or "outputs".
    inputs_first
        Names or shell patterns of weights that are stored (inputs x outputs), as of layers that
        compute x @ W. Embeddings and transposed convolutions are known to be.
    mean
        μ0: a number, a flat (P,) tensor, or "network" for the network's own weights, see `Prior`.
    precision_constraint
        A GPyTorch constraint for `raw_precision`; positive through `exp` by default.

    Notes
    -----
    The weights of a grouped convolution see a part of the input channels each, and are counted
    within it: with units="inputs", the k-th channels of all parts share a precision.

    Examples
    --------
    >>> prior = UnitWise(units="inputs").bind(["weight", "bias"], [(2, 3), (2,)])
    >>> prior.named_precisions()["weight"].shape, prior.num_groups
    (torch.Size([3]), 4)
    """

    def __init__(
        self,
        precision: float | Tensor | Mapping[str, float | Tensor] = 1.0,
        units: Literal["inputs", "outputs"] = "inputs",
        *,
        inputs_first: Sequence[str] = (),
        mean: WeightMean = 0.0,
        precision_constraint: Interval | None = None,
    ) -> None:
        if units not in ("inputs", "outputs"):
            raise ValueError(f'units: expected "inputs" or "outputs", got {units!r}')
        super().__init__(precision, mean=mean, precision_constraint=precision_constraint)
        self.units = units
        self._patterns = [inputs_first] if isinstance(inputs_first, str) else list(inputs_first)

    def _check_tensors(self, names: tuple[str, ...], shapes: tuple[torch.Size, ...] | None) -> None:
        super()._check_tensors(names, shapes)
        for pattern in self._patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"inputs_first: {pattern!r} matches none of the parameter tensors "
                    f"({', '.join(names)})"
                )

    def _axes(self, name: str, shape: torch.Size, inputs_first: bool) -> tuple[int, ...]:
        if len(shape) < 2:
            return () if self.units == "inputs" else tuple(range(len(shape)))
        swapped = inputs_first or any(fnmatchcase(name, p) for p in self._patterns)
        return (int((self.units == "inputs") != swapped),)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, units={self.units!r}"
