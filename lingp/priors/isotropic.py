"""One precision for all weights."""

from __future__ import annotations

from gpytorch.constraints import Interval
from torch import Tensor

from lingp.priors.base import Prior, WeightMean, as_precision
from lingp.runtime.described import described


@described()
class Isotropic(Prior):
    """θ ~ N(μ0, I / precision): one precision for all weights.

    Parameters
    ----------
    precision
        1 / variance of every weight.
    mean
        μ0: a number, a flat (P,) tensor, or "network" for the network's own weights, see `Prior`.
    precision_constraint
        A GPyTorch constraint for `raw_precision`; positive through `exp` by default.

    Examples
    --------
    >>> prior = Isotropic(precision=0.1).bind(["0.weight", "0.bias"])
    >>> prior.variances().round(decimals=6).tolist()
    [10.0, 10.0]
    """

    isotropic = True

    def __init__(
        self,
        precision: float | Tensor = 1.0,
        *,
        mean: WeightMean = 0.0,
        precision_constraint: Interval | None = None,
    ) -> None:
        super().__init__(mean)
        precision = as_precision(precision)
        if precision.numel() != 1:
            raise ValueError(
                f"precision: an isotropic prior has one, got {precision.numel()}; "
                "use Layerwise for one per parameter tensor"
            )
        self._register_precision(precision.reshape(()), precision_constraint)

    def variances(self) -> Tensor:
        """1 / precision for each parameter tensor, (L,)."""
        return (1.0 / self.precision).expand(self.num_parameter_tensors)
