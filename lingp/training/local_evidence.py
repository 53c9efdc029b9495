"""How the evidence changes when weights are taken out, from one linearisation.

A weight is taken out by a prior variance that goes to 0 around the value 0. In whitened weights
e = Σ0^{-1/2} θ with posterior N(m, S), S = (I + Φᵀ Φ)⁻¹, and prior N(μ, I), the evidence of the
linearised model without the group g is that with it times the Savage–Dickey density ratio (Dickey,
1971; Verdinelli and Wasserman, 1995, eq. 2),

    Δ log q(D) = log N(0 | m_g, S_gg) - log N(0 | μ_g, I)

while the other weights move by -S_rg S_gg⁻¹ m_g (the optimal brain surgeon: Hassibi and Stork,
1993, eq. 5) and their covariance becomes S' = S - S_:g S_gg⁻¹ S_g:. For a refitted mean and
Gaussian noise that is exact. Around a network that is not at the mode, with b the gradient of its
log joint density in e,

    Δ = -½ m_gᵀ S_gg⁻¹ m_g - (S b)_gᵀ S_gg⁻¹ m_g - ½ log det S_gg + ½ |μ_g|²

is exact for the moved weights of the linearised model; where b = 0, it is the ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lingp.inference import LinearizedLaplace, TrainingSet
from lingp.likelihoods import CurvatureRoot


class LocalEvidence:
    """Posterior of the whitened weights of one linearisation, from which groups are taken out.

    In float64, with a dense matrix of P x P or N·C x P, whichever is smaller.

    Parameters
    ----------
    laplace
        Any posterior mean, likelihood and prior.

    Attributes
    ----------
    mean
        m (P,) of what is left; 0 for what is taken out.
    left
        Which weights aren't taken out, (P,).
    change
        Expected change of the log evidence by all that was taken out, in nats.
    """

    @torch.no_grad()
    def __init__(self, laplace: LinearizedLaplace) -> None:
        training = laplace.training
        variances = laplace.prior.variances().to(training.outputs)
        scale = training.per_weight(variances).double().sqrt()
        self._covariance = _covariance(training, laplace.curvature_root(), scale)
        weights, outputs = training.linearized.weights(), training.outputs
        shift = laplace.weight_shift()  # from the network to a refitted mean
        if shift is not None:
            weights = weights + shift
            outputs = outputs + training.matmul(shift.unsqueeze(-1)).squeeze(-1)
        self.mean = weights / scale
        self._prior_mean = (laplace.prior.mean.to(weights) / scale).expand_as(weights)
        residual = laplace.data_term.residual(outputs).unsqueeze(-1)
        slope = training.t_matmul(residual).squeeze(-1)
        gradient = scale * slope - (self.mean - self._prior_mean)  # b
        self._step = self._covariance.matmul(gradient)  # S b
        self.left = torch.ones_like(scale, dtype=torch.bool)
        self.change = 0.0

    @torch.no_grad()
    def single_changes(self) -> Tensor:
        """Δ of each weight on its own, (P,); 0 for those that are out."""
        variance = self._covariance.diagonal()
        fit = -(0.5 * self.mean + self._step) * self.mean / variance
        changes = fit - 0.5 * variance.log() + 0.5 * self._prior_mean.square()
        return changes.where(self.left, 0.0)

    @torch.no_grad()
    def changes(self, groups: Sequence[Tensor]) -> Tensor:
        """Δ of each group of weights on its own, (U,); those that are out count no more."""
        groups = [group[self.left[group]] for group in groups]
        made = self.mean.new_zeros(len(groups))
        for size in {len(group) for group in groups}:
            rows = [j for j, group in enumerate(groups) if len(group) == size]
            index = torch.stack([groups[j] for j in rows])  # (u, k)
            factor = torch.linalg.cholesky(self._covariance.blocks(index))
            right = torch.stack([self.mean[index], self._step[index]], -1)
            half = torch.linalg.solve_triangular(factor, right, upper=False)
            fit = -((0.5 * half[..., 0] + half[..., 1]) * half[..., 0]).sum(-1)
            volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            made[rows] = fit - volume + 0.5 * self._prior_mean[index].square().sum(-1)
        return made

    @torch.no_grad()
    def remove(self, group: Tensor) -> None:
        """Take a group of weights (k,) out, those of them that aren't."""
        group = group[self.left[group]]
        self.change += float(self.changes([group]))
        factor = torch.linalg.cholesky(self._covariance.blocks(group.unsqueeze(0))[0])
        values = torch.stack([self.mean, self._step], -1)
        solved = torch.cholesky_solve(values[group], factor)
        values -= self._covariance.rows(group).mT @ solved
        values[group] = 0
        self.mean, self._step = values.unbind(-1)
        self._covariance.condition(group, factor)
        self.left[group] = False


def _covariance(training: TrainingSet, root: CurvatureRoot, scale: Tensor) -> _Dense | _LowRank:
    """S = (I + Φᵀ Φ)⁻¹."""

    def rows() -> Iterator[Tensor]:
        for here, jacobian in training.dense_chunks():
            yield root.rows(here).t_apply(jacobian).flatten(0, 1).double() * scale

    if training.num_data * root.rank < len(scale):
        return _LowRank(torch.cat(list(rows())))
    squared = torch.eye(len(scale), dtype=scale.dtype, device=scale.device)
    for block in rows():
        squared.addmm_(block.mT, block)
    return _Dense(torch.cholesky_inverse(torch.linalg.cholesky(squared)))


class _Dense:
    """S as it is, (P x P)."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def matmul(self, v: Tensor) -> Tensor:
        return self.matrix @ v

    def diagonal(self) -> Tensor:
        return self.matrix.diagonal()

    def blocks(self, index: Tensor) -> Tensor:
        """S_gg of groups of equal size, (u x k) -> (u x k x k)."""
        return self.matrix[index[:, :, None], index[:, None]]

    def rows(self, group: Tensor) -> Tensor:
        """S_g:, (k x P)."""
        return self.matrix[group]

    def condition(self, group: Tensor, factor: Tensor) -> None:
        """S' = S - S_:g S_gg⁻¹ S_g:, with the Cholesky factor of S_gg."""
        half = torch.linalg.solve_triangular(factor, self.matrix[group], upper=False)
        self.matrix.addmm_(half.mT, half, alpha=-1)
        self.matrix[group] = 0  # rounding brings no weight back
        self.matrix[:, group] = 0


class _LowRank:
    """S = I - Φᵀ Y with Y = (I + Φ Φᵀ)⁻¹ Φ, (N·K x P)."""

    def __init__(self, whitened: Tensor) -> None:
        squared = whitened @ whitened.mT
        squared.diagonal().add_(1)
        self.whitened = whitened  # Φ
        self.solved = torch.cholesky_solve(whitened, torch.linalg.cholesky(squared))  # Y

    def matmul(self, v: Tensor) -> Tensor:
        return v - self.whitened.mT @ (self.solved @ v)

    def diagonal(self) -> Tensor:
        return 1 - (self.whitened * self.solved).sum(0)

    def blocks(self, index: Tensor) -> Tensor:
        """S_gg of groups of equal size, (u x k) -> (u x k x k)."""
        identity = torch.eye(index.shape[1], dtype=self.solved.dtype, device=self.solved.device)
        products = [self.whitened[:, g].mT @ self.solved[:, g] for g in index]
        return identity - torch.stack(products)

    def rows(self, group: Tensor) -> Tensor:
        """S_g:, (k x P)."""
        made = -self.solved[:, group].mT @ self.whitened
        made[torch.arange(len(group), device=group.device), group] += 1
        return made

    def condition(self, group: Tensor, factor: Tensor) -> None:
        """Y' = Y + Y_g S_gg⁻¹ Φ_gᵀ Y, with the Cholesky factor of S_gg."""
        answer = torch.cholesky_solve(self.whitened[:, group].mT @ self.solved, factor)
        self.solved += self.solved[:, group] @ answer
        self.whitened[:, group] = 0
        self.solved[:, group] = 0
