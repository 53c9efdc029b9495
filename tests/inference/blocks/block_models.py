"""Small models with their whitened Jacobian, for tests of blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from dense import dense_jacobian
from torch import Tensor, nn

import lingp
from lingp.inference import LinearizedLaplace, TrainingSet
from lingp.inference.blocks import BoundBlocks
from lingp.likelihoods import Categorical, CorrelatedGaussian, Gaussian, Poisson, Tempered
from lingp.linearization import LinearizedNetwork
from lingp.priors import Layerwise

COVARIANCE = [[0.3, 0.1, 0.0], [0.1, 0.2, -0.05], [0.0, -0.05, 0.4]]
LIKELIHOODS = {
    "gaussian": lambda: Gaussian([0.3, 0.1, 0.2]),
    "one noise": lambda: Gaussian(0.2),
    "correlated": lambda: CorrelatedGaussian(COVARIANCE),
    "categorical": Categorical,
    "tempered": lambda: Tempered(Categorical(), 0.6, learn=True),
    "poisson": Poisson,
}
OPTIONS = {
    "lower": ("lower", "joint"),
    "upper": ("upper", "joint"),
    "between": ("between", "joint"),
    "separate": ("lower", "separate"),
    "separate upper": ("upper", "separate"),
}


def network(width: int = 4, outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Linear(2, width), nn.Tanh(), nn.Linear(width, outputs)
        return nn.Sequential(*layers).double()


@dataclass
class Model:
    """A model, and Φ by its definition."""

    net: nn.Module
    x: Tensor
    laplace: LinearizedLaplace

    def phi(self) -> Tensor:
        """(N x K x P)."""
        prior, root = self.laplace.prior, self.laplace.curvature_root().dense()
        sizes = torch.tensor([p.numel() for p in self.net.parameters()])
        scale = prior.variances().sqrt().repeat_interleave(sizes)
        return (root.mT @ (dense_jacobian(self.net, self.x) * scale)).detach()

    def with_blocks(self, rows, total=None, option="lower") -> LinearizedLaplace:
        rows = [torch.as_tensor(r) for r in rows]
        method = BoundBlocks(self.laplace.training, rows, total or len(rows), *OPTIONS[option])
        return replace(self.laplace, method=method)


def model(name="gaussian", prior=None, num_data=11, width=4, keep=1 << 30) -> Model:
    """Weighted data in batches of four rows."""
    net, likelihood = network(width), LIKELIHOODS[name]()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_data, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        y = likelihood.sample(net(x), generator=generator)
    y = y.squeeze(-1) if likelihood.num_labels((3,)) else y
    y = likelihood.check_targets(y, (3,), torch.float64)
    weights = torch.linspace(0.5, 2, num_data, dtype=torch.float64)
    linearized = LinearizedNetwork(net, dtype=torch.float64)
    batches = zip(x.split(4), y.split(4), weights.split(4), strict=True)
    training = TrainingSet.collect(linearized, batches, keep_bytes=keep, progress=False)
    prior = prior or Layerwise(torch.tensor([0.5, 1.5, 0.9, 0.3]))
    prior.bind_to(linearized)
    return Model(
        net, x, LinearizedLaplace(training, prior, likelihood, lingp.inference.WeightSpace)
    )


def log_det(phi: Tensor, scale: float = 1.0) -> Tensor:
    rows = phi.reshape(-1, phi.shape[-1])
    return torch.logdet(torch.eye(len(rows), dtype=rows.dtype) + scale * rows @ rows.mT)
