"""One precision per parameter tensor."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from gpytorch.constraints import Interval
from torch import Tensor

from lingp.priors.base import Prior, WeightMean, as_precision, check_names
from lingp.runtime.described import described


@described()
class Layerwise(Prior):
    """θ_l ~ N(μ0_l, I / precision_l): one precision per parameter tensor.

    Parameters
    ----------
    precision
        One number for all tensors to start from, a tensor (L,), or a mapping from the name of each
        parameter tensor to its precision.
    mean
        μ0: a number, a flat (P,) tensor, or "network" for the network's own weights, see `Prior`.
    precision_constraint
        A GPyTorch constraint for `raw_precision`; positive through `exp` by default.

    Notes
    -----
    `raw_precision` gets its final shape (L,) in `bind`. Before that, a single number stands for
    all tensors to come.
    """

    def __init__(
        self,
        precision: float | Tensor | Mapping[str, float] = 1.0,
        *,
        mean: WeightMean = 0.0,
        precision_constraint: Interval | None = None,
    ) -> None:
        super().__init__(mean)
        self._by_name: tuple[str, ...] | None = None
        if isinstance(precision, Mapping):
            self._by_name = tuple(precision)
            values = [as_precision(value).reshape(()) for value in precision.values()]
            if not values:
                raise ValueError("precision: the mapping is empty")
            precision = torch.stack(values)
        self._register_precision(as_precision(precision).reshape(-1), precision_constraint)

    def _check_tensors(self, names: tuple[str, ...], shapes: tuple[torch.Size, ...] | None) -> None:
        if self._by_name is not None:
            check_names(self._by_name, names)
        elif self.raw_precision.numel() not in (1, len(names)):
            raise ValueError(
                f"precision: got {self.raw_precision.numel()} values for {len(names)} parameter "
                f"tensors ({', '.join(names)}); give one number, or one per tensor"
            )

    def _on_bind(self, inputs_first: frozenset[str]) -> None:
        names = self.names or ()
        raw = self.raw_precision.detach()
        if self._by_name is not None:
            raw = raw[[self._by_name.index(name) for name in names]]
        requires_grad = self.raw_precision.requires_grad
        self.raw_precision = torch.nn.Parameter(raw.expand(len(names)).clone(), requires_grad)

    def variances(self) -> Tensor:
        """1 / precision of each parameter tensor, (L,)."""
        self.num_parameter_tensors  # noqa: B018  raises when the prior isn't bound
        return 1.0 / self.precision
