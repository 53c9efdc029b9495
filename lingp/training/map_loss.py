"""The loss of maximum a posteriori training, whose prior and likelihood may have any parameters.

-(N / n) Σ_{n in batch} w_n log p(y_n | f_n) + ½ |Σ0^{-1/2} (θ - μ0)|²

With Gaussian noise that is ridge regression with penalty noise · precision, whatever the number of
outputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lingp.inference import LinearizedLaplace
from lingp.linearization.selection import plain_name, unwrapped
from lingp.priors import Prior


def penalty(net: nn.Module, prior: Prior) -> Tensor:
    """½ |Σ0^{-1/2} (θ - μ0)|², 0-d, differentiable in the network's weights.

    Parameters
    ----------
    net
        The network, of whose parameters those that the prior is bound to are θ.
    prior
        A prior that is bound to them.

    Raises
    ------
    RuntimeError
        If the prior isn't bound to a network yet.
    ValueError
        If the network has no parameters of these names.
    """
    return Penalty(net, prior)()


class Penalty:
    """`penalty` for a prior that stays as it is: its variances are looked up once.

    Parameters
    ----------
    net, prior
        As in `penalty`; the weights may move.
    """

    def __init__(self, net: nn.Module, prior: Prior) -> None:
        names = prior._check_bound()
        weights = {plain_name(name): p for name, p in unwrapped(net).named_parameters()}
        unknown = [name for name in names if name not in weights]
        if unknown:
            raise ValueError(
                f"net: has no parameter {unknown[0]!r}, which the prior is over; give the network "
                "that the prior was bound to"
            )
        self.weights = [weights[name] for name in names]
        prior.bind(names, [p.shape for p in self.weights])  # one that was bound to names alone
        with torch.no_grad():
            self.mean = prior.mean.to(self.weights[0])
            self.precisions = 1 / variances_of_weights(prior).to(self.weights[0])

    def __call__(self) -> Tensor:
        """At the weights as they are now."""
        flat = torch.cat([p.reshape(-1) for p in self.weights])
        return 0.5 * ((flat - self.mean).square() @ self.precisions)


def variances_of_weights(prior: Prior) -> Tensor:
    """Prior variance of each weight, (P,), of a prior that is bound with shapes."""
    values = prior.variances()
    assert prior.shapes is not None
    sizes = torch.tensor([shape.numel() for shape in prior.shapes], device=values.device)
    return values.repeat_interleave(sizes) if len(values) == len(sizes) else values


@torch.no_grad()
def log_joint(laplace: LinearizedLaplace, outputs: Tensor, weights: Tensor) -> float:
    """log p(D | f) - ½ |Σ0^{-1/2} (θ - μ0)|², -inf where it is no number.

    Parameters
    ----------
    laplace
        The data, the likelihood and the prior.
    outputs
        f, (N x C).
    weights
        θ, (P,).
    """
    variances, mean = variances_of_weights(laplace.prior), laplace.prior.mean
    squares = (weights - mean.to(weights)).square() / variances.to(weights)
    value = float(laplace.data_term.log_prob(outputs)) - 0.5 * float(squares.sum())
    return value if math.isfinite(value) else -math.inf
