"""A prior's variances at one moment."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from typing_extensions import Self

from lingp.priors import Prior


@dataclass(frozen=True)
class PriorValues:
    """Variances as they are now, whatever happens to the prior later.

    Attributes
    ----------
    values
        (L,) or (P,), with the graph that `Prior.variances` gave.
    isotropic, group
        As the prior has them.
    """

    values: Tensor
    isotropic: bool
    group: Tensor | None

    @classmethod
    def of(cls, prior: Prior) -> Self:
        """Those of a bound prior."""
        return cls(prior.variances(), prior.isotropic, prior.group)

    def detached(self) -> Self:
        """The same numbers without a graph, in memory of their own."""
        return replace(self, values=self.values.detach().clone())

    def variances(self) -> Tensor:
        """The values."""
        return self.values
