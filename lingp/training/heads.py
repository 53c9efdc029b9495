"""Heads for regression with noise that depends on the input, in natural parameters.

The outputs that `lingp.likelihoods.Heteroscedastic` takes for a normal N(μ, σ²) are

    f₁ = μ / σ²,      g(f₂) = 1 / σ²,

first all f₁, then all f₂. (Immer, Palumbo, Marx and Vogt, "Effective Bayesian heteroscedastic
regression with deep neural networks", NeurIPS 2023, section 3: in these parameters the
log-likelihood is concave and its curvature is positive semidefinite.)
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from lingp.likelihoods import Heteroscedastic, Likelihood, as_likelihood

_LARGEST = 40.0  # |log σ²| that Heteroscedastic keeps to


class NaturalHead(nn.Linear):
    """A linear layer from features to the 2T natural parameters of T targets.

    Parameters
    ----------
    in_features
        Number of features.
    num_targets
        T.
    bias, device, dtype
        As in `torch.nn.Linear`.
    """

    def __init__(
        self,
        in_features: int,
        num_targets: int = 1,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        for name, number in (("in_features", in_features), ("num_targets", num_targets)):
            if number < 1:
                raise ValueError(f"{name}: expected a number >= 1, got {number}")
        super().__init__(in_features, 2 * num_targets, bias, device, dtype)
        self.num_targets = num_targets

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, num_targets={self.num_targets}, "
            f"bias={self.bias is not None}"
        )


def with_natural_head(
    backbone: nn.Module, num_features: int, num_targets: int = 1
) -> nn.Sequential:
    """The backbone and a `NaturalHead` on its features, in the backbone's dtype and device.

    Parameters
    ----------
    backbone
        Gives (N x num_features). It becomes a part of the result, `backbone`, as it is; the other
        part is `head`.
    num_features
        Number of features.
    num_targets
        T.
    """
    like = next((p for p in backbone.parameters() if p.is_floating_point()), torch.empty(0))
    head = NaturalHead(num_features, num_targets, device=like.device, dtype=like.dtype)
    return nn.Sequential(OrderedDict(backbone=backbone, head=head))


def natural_outputs(
    mean: Tensor, log_variance: Tensor, likelihood: Likelihood | str = "heteroscedastic"
) -> Tensor:
    """The outputs (... x 2T) of N(mean, exp(log_variance)), both (... x T).

    The inverse of the likelihood's link. Differentiable; log variances are taken as ±40 beyond, and
    variances that the likelihood's floor rules out as the largest that it has.
    """
    found = as_heteroscedastic(likelihood)
    f2 = -log_variance.clamp(-_LARGEST, _LARGEST)
    precision = f2.exp()
    if found.floor:
        precision = (precision - found.floor).clamp(min=math.exp(-_LARGEST))
        f2 = precision.log()
    if found.link == "softplus":
        # g = log(1 + e^f₂), so f₂ = log(e^g - 1), without overflow or cancellation
        f2 = precision + (-torch.expm1(-precision)).log()
    return torch.cat([mean * (precision + found.floor), f2], -1)


@torch.no_grad()
def initialize_head(
    net: nn.Module,
    y: Any,
    likelihood: Likelihood | str = "heteroscedastic",
    *,
    weight_scale: float = 0.0,
) -> None:
    """Set a head, in place, so that the network predicts each target's mean and variance.

    The bias becomes the natural parameters of N(mean, variance), the weights are multiplied by
    `weight_scale`. At 0 the prediction is the same for all inputs; the head's weights have
    gradients all the same, and with the first step those of the backbone have.

    Under a prior on the weights the bias pays for its size: standardise the targets where the
    prior is to be neutral.

    Parameters
    ----------
    net
        A `NaturalHead` or a network with one; else the last linear layer with 2T outputs is taken.
    y
        Targets (N x T), or (N,); missing ones are NaN.
    likelihood
        The likelihood whose link is inverted.
    weight_scale
        Factor of the head's weights.

    Raises
    ------
    ValueError
        If there is no head for T targets, it has no bias, or a target has no variance.
    """
    found = as_heteroscedastic(likelihood)
    targets = torch.as_tensor(y).double()
    if targets.dim() == 0 or len(targets) == 0 or not bool(targets.isinf().logical_not().all()):
        raise ValueError(
            f"y: expected finite targets (N x T), NaN where missing; got {tuple(targets.shape)}"
            + (" with infinite values" if targets.isinf().any() else "")
        )
    targets = targets.reshape(len(targets), -1)
    head = _find_head(net, targets.shape[1])
    mean = targets.nanmean(0)
    variance = (targets - mean).square().nanmean(0)
    if not bool((variance > 0).all()):  # NaN where nothing is observed
        raise ValueError(
            f"y: target {int((~(variance > 0)).nonzero()[0])} has fewer than two different observed"
            " values, so it has no variance to start from; leave it out, or set the bias by hand"
        )
    head.bias.copy_(natural_outputs(mean, variance.log(), found))
    head.weight.mul_(weight_scale)


def _find_head(net: nn.Module, num_targets: int) -> nn.Linear:
    size = 2 * num_targets
    layers = [m for m in net.modules() if isinstance(m, nn.Linear)]
    heads = [m for m in layers if isinstance(m, NaturalHead)]
    if heads:
        found = f"its natural heads are for {[m.num_targets for m in heads]} targets"
        fitting: list[nn.Linear] = [m for m in heads if m.out_features == size]
    else:
        found = f"its linear layers have {[m.out_features for m in layers]} outputs"
        fitting = [m for m in layers if m.out_features == size][-1:]
    if len(fitting) != 1:
        raise ValueError(
            f"net: expected one head with {size} outputs for the {num_targets} targets of y, but "
            f"{found}; give the head itself, or use with_natural_head"
        )
    if fitting[0].bias is None:
        raise ValueError("net: its head has no bias to initialise; make it with bias=True")
    return fitting[0]


def as_heteroscedastic(likelihood: Likelihood | str) -> Heteroscedastic:
    """The likelihood, which has to be heteroscedastic."""
    found = as_likelihood(likelihood)
    if not isinstance(found, Heteroscedastic):
        raise TypeError(
            f"likelihood: expected Heteroscedastic, got {type(found).__name__}; natural heads are "
            "for it only"
        )
    return found
