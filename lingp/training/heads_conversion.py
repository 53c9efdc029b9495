"""Networks that give mean and variance, as networks that give natural parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lingp.likelihoods import Heteroscedastic, Likelihood
from lingp.linearization.inputs import call_network
from lingp.training.heads import as_heteroscedastic, natural_outputs

_LOWEST = -45.0  # softplus has no gradient worth having below, and its logarithm overflows

Variance = Literal["log", "log_std", "softplus"] | Callable[[Tensor], Tensor]


class NaturalFromMeanVariance(nn.Module):
    """A network of mean and variance whose outputs are the natural parameters of the same normal.

    For networks trained already, by `torch.nn.GaussianNLLLoss` or the like: with the likelihood
    `Heteroscedastic` this module predicts the same N(μ(x), σ²(x)), and has the same weights, so
    its linearisation is that of the natural parameters: curvature is positive semidefinite, and
    Laplace's posterior and the mixture predictive are those of a natural head.

    Parameters
    ----------
    net
        Gives means and raw variances: one tensor (N x 2T), first the T means, or two tensors
        (N x T), or (N,) for one target. It becomes a part of this module, `net`, as it is.
    variance
        What the raw variances are: "log" (logarithms of σ²), "log_std" (logarithms of σ),
        "softplus" (σ² = log(1 + eˢ)), or a function that gives σ² from them.
    likelihood
        The likelihood whose link, with its floor, is inverted.
    minimum_variance
        What the network's own loss adds to σ², as some do.

    Notes
    -----
    σ² is taken as e^±40 beyond, as in `Heteroscedastic`.
    """

    def __init__(
        self,
        net: nn.Module,
        variance: Variance = "log",
        *,
        likelihood: Likelihood | str = "heteroscedastic",
        minimum_variance: float = 0.0,
    ) -> None:
        super().__init__()
        if not (callable(variance) or variance in ("log", "log_std", "softplus")):
            raise ValueError(
                f'variance: expected "log", "log_std", "softplus" or a function, got {variance!r}'
            )
        if not minimum_variance >= 0:
            raise ValueError(f"minimum_variance: expected a number >= 0, got {minimum_variance}")
        self.net = net
        self.variance = variance
        found = as_heteroscedastic(likelihood)
        self.link, self.floor = found.link, found.floor
        self.minimum_variance = minimum_variance

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        if inputs and named:
            out = self.net(*inputs, **named)
        else:
            out = call_network(self.net, named or (inputs if len(inputs) > 1 else inputs[0]))
        mean, raw = _split(out)
        likelihood = Heteroscedastic(self.link, floor=self.floor)
        return natural_outputs(mean, self._log_variance(raw), likelihood)

    def _log_variance(self, raw: Tensor) -> Tensor:
        if self.variance == "log":
            found = raw
        elif self.variance == "log_std":
            found = 2 * raw
        elif self.variance == "softplus":
            # torch's own threshold of 20 is off by 1e-10
            found = softplus(raw.clamp(min=_LOWEST), threshold=50.0).log()
        else:
            found = self.variance(raw).log()
        if self.minimum_variance:
            found = torch.logaddexp(found, found.new_tensor(self.minimum_variance).log())
        return found

    def extra_repr(self) -> str:
        name = self.variance if isinstance(self.variance, str) else "function"
        floor = f", floor={self.floor:g}" if self.floor else ""
        return f"variance={name!r}, link={self.link!r}{floor}"


def _split(out: Any) -> tuple[Tensor, Tensor]:
    """Means and raw variances, (N x T) each."""
    if isinstance(out, Tensor):
        if out.dim() < 2 or out.shape[-1] % 2:
            raise ValueError(
                "net: expected outputs (N x 2T), T means and then T variances, or two tensors; "
                f"got {tuple(out.shape)}"
            )
        return tuple(out.chunk(2, -1))  # type: ignore[return-value]
    if not (isinstance(out, tuple | list) and len(out) == 2):
        raise TypeError(
            "net: expected a tensor (N x 2T) or two tensors, means and variances; "
            f"got {type(out).__name__}"
        )
    mean, raw = (t.unsqueeze(-1) if t.dim() == 1 else t for t in out)
    if mean.shape != raw.shape:
        raise ValueError(
            f"net: means and variances have different shapes, {tuple(mean.shape)} and "
            f"{tuple(raw.shape)}; a variance is needed for each mean"
        )
    return mean, raw
