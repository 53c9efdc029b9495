"""A prior's variances without the prior."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PriorValues:
    """Variances as they are now, whatever happens to the prior later.

    Attributes
    ----------
    values
        (L,) or (P,).
    isotropic, group
        As the prior has them.
    """

    values: Tensor
    isotropic: bool
    group: Tensor | None

    def variances(self) -> Tensor:
        """The values."""
        return self.values
