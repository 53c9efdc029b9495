"""One precision per weight."""

from __future__ import annotations

import torch

from lingp.priors.grouped import Grouped
from lingp.runtime.described import described


@described()
class Diagonal(Grouped):
    """θ_i ~ N(μ0_i, 1 / precision_i): one precision for each of the P weights.

    Automatic relevance determination of single weights, as in the relevance vector machine (Tipping
    2001): `optimize_hyperparameters` finds all of them at the cost of a few log determinants and
    switches off the weights that the data don't need. Use it with the network's mean: at a refitted
    mean so many precisions fit the noise as well. Kernels take the columns of the Jacobian, (N·C)²
    P flops, so that weight space is the cheaper one up to larger P.

    Parameters
    ----------
    precision
        One number, a flat (P,) tensor, or a mapping from the name of each parameter tensor to a
        number or a tensor of its size.
    mean
        μ0: a number, a flat (P,) tensor, or "network" for the network's own weights, see `Prior`.
    precision_constraint
        A GPyTorch constraint for `raw_precision`; positive through `exp` by default.

    Examples
    --------
    >>> prior = Diagonal(precision=4.0).bind(["weight", "bias"], [(2, 3), (2,)])
    >>> prior.variances().tolist()
    [0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25]
    """

    columnwise = True

    def _axes(self, name: str, shape: torch.Size, inputs_first: bool) -> tuple[int, ...]:
        return tuple(range(len(shape)))
