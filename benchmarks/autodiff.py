"""What lingp has no part in: Jacobian products by `torch.func`, posteriors of dense matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap


@dataclass(frozen=True)
class Autodiff:
    """J v and Jᵀ u of a network at many inputs."""

    network: nn.Module
    x: Tensor
    batch: int = 2000

    @property
    def _parameters(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.network.named_parameters()}

    def _function(self, x: Tensor) -> Callable[[dict[str, Tensor]], Tensor]:
        return lambda parameters: functional_call(self.network, parameters, (x,))

    def matmul(self, v: Tensor) -> Tensor:
        """(P,) -> (N x C)."""
        parameters, tangent, start = self._parameters, {}, 0
        for name, p in parameters.items():
            tangent[name] = v[start : start + p.numel()].view_as(p)
            start += p.numel()
        parts = [
            jvp(self._function(x), (parameters,), (tangent,))[1] for x in self.x.split(self.batch)
        ]
        return torch.cat(parts)

    def t_matmul(self, u: Tensor) -> Tensor:
        """(N x C) -> (P,)."""
        parameters = self._parameters
        total = torch.zeros(sum(p.numel() for p in parameters.values())).to(u)
        for x, part in zip(self.x.split(self.batch), u.split(self.batch), strict=True):
            pulled = vjp(self._function(x), parameters)[1](part)[0]
            total += torch.cat([pulled[name].flatten() for name in parameters])
        return total

    def jacobian(self) -> Tensor:
        """(N·C x P), written out."""
        parameters = self._parameters

        def one(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self.network, parameters, (x.unsqueeze(0),)).squeeze(0)

        found = vmap(jacrev(one), (None, 0))(parameters, self.x)
        return torch.cat([found[name].flatten(2) for name in parameters], 2).flatten(0, 1)


def curvature(likelihood: str, f: Tensor, noise: float) -> Tensor:
    """Λ at outputs f (N x C), (N x C x C): I / noise for "gaussian", else diag(p) - p pᵀ."""
    if likelihood == "gaussian":
        return torch.eye(f.shape[1]).to(f).expand(len(f), -1, -1) / noise
    p = f.softmax(-1)
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def dense_posterior(
    jacobian: Tensor, test: Tensor, curved: Tensor, inducing: int | None
) -> tuple[Tensor, Tensor]:
    """Covariance at test rows, (n·C x n·C), and log determinant, by formulas of dense matrices.

    Parameters
    ----------
    jacobian, test
        J Σ0^{1/2} of training and test rows.
    curved
        Λ, (N x C x C).
    inducing
        The first so many rows of J are the inducing points, and outside of their span all have
        one variance that is fitted by the bound on the evidence; None: exact.
    """
    weight = torch.block_diag(*curved)
    if inducing is None:
        values, vectors = torch.linalg.eigh(weight)
        root = vectors * values.clamp(min=0).sqrt()
        whitened = root.mT @ jacobian  # Φ
        b = torch.eye(len(whitened)).to(whitened) + whitened @ whitened.mT
        cross = whitened @ test.mT
        return test @ test.mT - cross.mT @ torch.linalg.solve(b, cross), torch.logdet(b)
    z = jacobian[:inducing]
    lower = torch.linalg.cholesky(z @ z.mT)
    psi, psi_test = (
        torch.linalg.solve_triangular(lower, z @ j.mT, upper=False).mT for j in (jacobian, test)
    )
    a = torch.eye(inducing).to(psi) + psi.mT @ weight @ psi
    left = (weight @ (jacobian @ jacobian.mT - psi @ psi.mT)).trace() / (
        jacobian.shape[1] - inducing
    )
    outside = (test @ test.mT - psi_test @ psi_test.mT) / (1 + left)
    return outside + psi_test @ torch.linalg.solve(a, psi_test.mT), torch.logdet(a)
