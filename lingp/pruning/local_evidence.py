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

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from lingp.inference import LinearizedLaplace


class LocalEvidence:
    """Posterior of the whitened weights of one linearisation, from which groups are taken out.

    In float64, whatever the posterior is in.

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
        posterior = laplace.exact_posterior()
        covariance = posterior.weight_covariance(sys.maxsize)
        assert covariance is not None
        self._covariance = covariance.double()
        training, scale = posterior.training, posterior.scale
        weights, outputs = training.linearized.weights(), training.outputs
        shift = laplace.weight_shift()  # from the network to a refitted mean
        if shift is not None:
            weights = weights + shift
            outputs = outputs + training.matmul(shift.unsqueeze(-1)).squeeze(-1)
        self.mean = (weights / scale).double()
        self._prior_mean = (laplace.prior.mean / scale.double()).expand_as(self.mean)
        residual = laplace.data_term.residual(outputs).unsqueeze(-1)
        slope = posterior.features.t_matmul(residual).squeeze(-1)
        gradient = slope - (self.mean - self._prior_mean)  # b
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
        values = torch.stack([self.mean, self._step], -1)
        solved = torch.linalg.solve(self._covariance.blocks(group.unsqueeze(0))[0], values[group])
        values -= self._covariance.rows(group).mT @ solved
        values[group] = 0
        self.mean, self._step = values.unbind(-1)
        self._covariance = self._covariance.given(group)
        self.left[group] = False
