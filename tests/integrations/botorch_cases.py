"""A small network, data and the GP of both, for the tests of the BoTorch model."""

import torch

import lingp
from lingp.likelihoods import Gaussian

D, N = 3, 12


def network(outputs=1, hidden=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(D, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, outputs)
    ).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.7 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return net


def rows(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, D, generator=generator, dtype=torch.float64)


def values(x, outputs=1):
    base = (3 * x).sin().sum(-1, keepdim=True)
    return torch.cat([base * (c + 1) + c * x[..., :1] for c in range(outputs)], -1)


def fitted(outputs=1, likelihood=None, mean="refit", **options):
    x = rows(N)
    likelihood = likelihood or Gaussian(0.05)
    gp = lingp.LinearizedGP(
        network(outputs), likelihood, prior=options.pop("prior", 2.0), mean=mean, **options
    )
    y = options.pop("y", None)
    return gp.fit(x, values(x, outputs) if y is None else y, progress=False)
