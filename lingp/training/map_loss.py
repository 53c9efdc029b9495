"""The loss of maximum a posteriori training, whose prior and likelihood may have any parameters.

-(N / n) Σ_{n in batch} log p(y_n | f_n) + ½ |Σ0^{-1/2} (θ - μ0)|²
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lingp.priors import Prior


def penalty(net: nn.Module, prior: Prior) -> Tensor:
    """½ |Σ0^{-1/2} (θ - μ0)|², 0-d, differentiable in the network's weights.

    Parameters
    ----------
    net
        Its parameters of the names that the prior is bound to are θ.
    prior
        Bound to them.
    """
    assert prior.names is not None
    weights = dict(net.named_parameters())
    tensors = [weights[name] for name in prior.names]
    with torch.no_grad():
        variances, mean = prior.variances().to(tensors[0]), prior.mean.to(tensors[0])
    sizes = [t.numel() for t in tensors]
    centred = tensors if mean.dim() == 0 else [t.reshape(-1) for t in tensors]
    means = [mean] * len(tensors) if mean.dim() == 0 else list(mean.split(sizes))
    if variances.numel() == len(tensors):
        each = list(variances)
    else:
        each = list(variances.split(sizes))
        centred = [t.reshape(-1) for t in tensors]
    squares = [((t - m).square() / v).sum() for t, m, v in zip(centred, means, each, strict=True)]
    return 0.5 * torch.stack(squares).sum()
