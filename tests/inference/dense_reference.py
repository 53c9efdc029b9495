"""Linearised Laplace for any likelihood as the books write it: weight space, dense, float64.

Only log p(y | f) is taken from lingp; Σ0⁻¹, Λ and Hessians are written out by torch.func.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from laplace_cases import dense_jacobian
from likelihood_cases import LikelihoodCase
from likelihood_cases.case import log_prob_of
from torch import Tensor, nn

from lingp.likelihoods import Likelihood
from lingp.priors import Prior


@dataclass(frozen=True)
class DenseLaplace:
    """The model at the current hyperparameters; all results are differentiable in them.

    Attributes
    ----------
    net, x
        The network, its training inputs.
    y
        Checked targets.
    case
        Says what the curvature is.
    prior, likelihood
        Hyperparameters.
    row_weights
        How often each datum counts, (N,).
    """

    net: nn.Module
    x: Tensor
    y: Tensor
    case: LikelihoodCase
    prior: Prior
    likelihood: Likelihood
    row_weights: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", self.net(self.x).detach())
        object.__setattr__(self, "jacobian", dense_jacobian(self.net, self.x))  # (N·C, P)
        weights = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()])
        object.__setattr__(self, "weights", weights)

    def variances(self) -> Tensor:
        sizes = torch.tensor([p.numel() for p in self.net.parameters()])
        return self.prior.variances().repeat_interleave(sizes)

    def f(self, theta: Tensor) -> Tensor:
        change = self.jacobian @ (theta - self.weights)
        return self.outputs + change.view_as(self.outputs)

    def objective(self, theta: Tensor) -> Tensor:
        log_prob = self.row_weights @ self.likelihood.log_prob(self.y, self.f(theta))
        return log_prob - 0.5 * ((theta - self.prior.mean).square() / self.variances()).sum()

    def gradient(self, theta: Tensor) -> Tensor:
        each = torch.func.vmap(torch.func.grad(log_prob_of(self.likelihood), 1))
        residual = self.row_weights.unsqueeze(-1) * each(self.y, self.f(theta))
        pulled = self.jacobian.mT @ residual.reshape(-1)
        return pulled - (theta - self.prior.mean) / self.variances()

    def _pulled(self, curvature: Tensor) -> Tensor:
        """Σ0⁻¹ + Jᵀ Λ J, (P x P), for Λ (N x C x C)."""
        weighted = self.row_weights[:, None, None] * curvature
        stacked = self.jacobian.view(*self.outputs.shape, -1)
        return torch.diag(1 / self.variances()) + self.jacobian.mT @ (weighted @ stacked).flatten(
            0, 1
        )

    def precision(self, f: Tensor) -> Tensor:
        """Of the Laplace posterior, with the likelihood's own form of Λ."""
        return self._pulled(self.case.reference(self.likelihood, self.y, f))

    def hessian(self, theta: Tensor) -> Tensor:
        """-∇² of the objective, whatever form Λ has."""
        each = torch.func.vmap(torch.func.hessian(log_prob_of(self.likelihood), 1))
        return self._pulled(-each(self.y, self.f(theta)))

    def mode(self, start: Tensor | None = None) -> Tensor:
        """The optimum, with a graph: one more Newton step from it, the Hessian held fixed."""
        theta = self.weights if start is None else start
        with torch.no_grad():
            for _ in range(200):
                gradient = self.gradient(theta)
                values, vectors = torch.linalg.eigh(self.hessian(theta))
                step = vectors @ ((vectors.mT @ gradient) / values.abs())
                size, before = 1.0, self.objective(theta)
                while self.objective(theta + size * step) < before and size > 1e-9:
                    size *= 0.5
                if float(gradient @ step) < 1e-22:
                    theta = theta + step
                    break
                theta = theta + size * step
            hessian = self.hessian(theta)
        return theta + torch.linalg.solve(hessian, self.gradient(theta))

    def mean(self, mean: str, start: Tensor | None = None) -> Tensor:
        return self.weights if mean == "network" else self.mode(start)

    def log_evidence(self, mean: str, sites: str = "mean", start: Tensor | None = None) -> Tensor:
        theta = self.mean(mean, start)
        precision = self.precision(self.f(theta) if sites == "mean" else self.outputs)
        log_det = torch.logdet(precision) + self.variances().log().sum()
        return self.objective(theta) - 0.5 * log_det

    def covariance(self, jacobian: Tensor, f: Tensor) -> Tensor:
        return jacobian @ torch.linalg.solve(self.precision(f), jacobian.mT)


def build(
    case: LikelihoodCase,
    depth: int,
    *,
    num_data: int = 8,
    row_weights: Tensor | None = None,
    precision: float = 0.7,
) -> DenseLaplace:
    """A network of some depth under a layerwise prior, with the case's likelihood and targets."""
    from laplace_cases import mlp

    from lingp.priors import Layerwise

    with torch.random.fork_rng():
        torch.manual_seed(10 * depth + case.num_outputs)
        net = mlp(case.num_outputs, depth, width=4).double()
        with torch.no_grad():
            net[-1].weight.mul_(2.0)
    generator = torch.Generator().manual_seed(depth)
    x = torch.randn(num_data, 3, generator=generator, dtype=torch.float64)
    likelihood, y, _ = case.build(num_data)
    names = [name for name, _ in net.named_parameters()]
    precisions = precision * torch.linspace(-0.5, 0.5, len(names), dtype=torch.float64).exp()
    prior = Layerwise(precisions, mean=0.05).bind(names)
    if row_weights is None:
        row_weights = torch.ones(num_data, dtype=torch.float64)
    return DenseLaplace(net, x, y, case, prior, likelihood, row_weights)
