"""The loss of maximum a posteriori training, whose prior and likelihood may have any parameters.

-(N / n) Σ_{n in batch} w_n log p(y_n | f_n) + ½ |Σ0^{-1/2} (θ - μ0)|²

With Gaussian noise that is ridge regression with penalty noise · precision, whatever the number of
outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lingp.linearization.selection import plain_name, unwrapped
from lingp.priors import Prior


def penalty(net: nn.Module, prior: Prior) -> Tensor:
    """½ |Σ0^{-1/2} (θ - μ0)|², 0-d, differentiable in the network's weights.

    Parameters
    ----------
    net
        Its parameters of the names that the prior is bound to are θ.
    prior
        Bound to them.

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
        prior.num_parameter_tensors  # noqa: B018  raises when the prior isn't bound
        assert prior.names is not None
        weights = {plain_name(name): p for name, p in unwrapped(net).named_parameters()}
        unknown = [name for name in prior.names if name not in weights]
        if unknown:
            raise ValueError(
                f"net: has no parameter {unknown[0]!r}, which the prior is over; give the network "
                "that the prior was bound to"
            )
        self.weights = [weights[name] for name in prior.names]
        sizes = torch.tensor([p.numel() for p in self.weights])
        with torch.no_grad():
            like = self.weights[0]
            variances, self.mean = prior.variances().to(like), prior.mean.to(like)
            if len(variances) == len(sizes):
                variances = variances.repeat_interleave(sizes.to(variances.device))
            self.precisions = 1 / variances

    def __call__(self) -> Tensor:
        """At the weights as they are now."""
        flat = torch.cat([p.reshape(-1) for p in self.weights])
        return 0.5 * ((flat - self.mean).square() @ self.precisions)
