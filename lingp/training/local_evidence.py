"""How the evidence changes when weights are taken out, from one linearisation.

A weight is taken out by a prior variance that goes to 0 around the value 0. In whitened weights
e = Σ0^{-1/2} θ with posterior N(m, S), S = (I + Φᵀ Φ)⁻¹, and prior N(μ, I), the evidence of the
linearised model without the group g is that with it times the Savage–Dickey density ratio (Dickey,
1971; Verdinelli and Wasserman, 1995, eq. 2),

    Δ log q(D) = log N(0 | m_g, S_gg) - log N(0 | μ_g, I)

and the other weights move by -S_rg S_gg⁻¹ m_g (the optimal brain surgeon: Hassibi and Stork, 1993,
eq. 5), their covariance to S_rr - S_rg S_gg⁻¹ S_gr. That is exact for a refitted mean and Gaussian
noise. Around a network that is not at the mode, with b the gradient of its log joint density,

    Δ = -½ m_gᵀ S_gg⁻¹ m_g - (S b)_gᵀ S_gg⁻¹ m_g - ½ log det S_gg + ½ |μ_g|²

is exact for what the moved weights have. Where b = 0 it is the ratio above.

A hidden unit is no straight line in its weights: without those that leave it, those that enter have
no effect, and the linearisation counts the loss twice. With d the true change of the outputs when
all its weights are zero, from a forward pass, ρ = ∇_f log p(y | f), and the other weights linear,

    Δ = ρᵀ d - ½ dᵀ Λ d + ½ |m_g - μ_g|² + ½ Mᵀ S' M - bᵀ S' M - ½ log det S_gg
    M = Σ0^{1/2} Jᵀ Λ d,        S' = S - S_:g S_gg⁻¹ S_g:

and they move by -S' M. Without a move the terms with S' are gone (optimal brain damage). For
d = -J_g θ_g, both formulas agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lingp.inference import LinearizedLaplace
from lingp.inference.weight_space import WeightSpace


class LocalEvidence:
    """Posterior of the whitened weights of one linearisation, from which groups are taken out.

    Parameters
    ----------
    laplace
        Any posterior mean. S is dense, (P x P).

    Attributes
    ----------
    mean, covariance
        m (P,) and S (P x P) of what is left; 0 for what is taken out.
    movement
        Of the whitened weights that are left, (P,).
    change
        Predicted change of the log evidence by all that was taken out, in nats.
    """

    @torch.no_grad()
    def __init__(self, laplace: LinearizedLaplace) -> None:
        training, root = laplace.training, laplace.curvature_root()
        posterior = WeightSpace(training, laplace.prior, root)
        self.training, self.root, self.scale = training, root, posterior.scale
        identity = torch.eye(len(self.scale), dtype=self.scale.dtype, device=self.scale.device)
        self.covariance = posterior.factorization.solve(identity)
        weights, outputs = training.linearized.weights(), training.outputs
        self.shift = laplace.weight_shift()  # from the network to a refitted mean
        if self.shift is not None:
            weights = weights + self.shift
            outputs = outputs + training.matmul(self.shift.unsqueeze(-1)).squeeze(-1)
        self.mean = weights / self.scale
        self.prior_mean = (laplace.prior.mean.to(weights) / self.scale).expand_as(weights)
        self.residual = laplace.data_term.residual(outputs)  # ρ, (N x C)
        slope = training.t_matmul(self.residual.unsqueeze(-1)).squeeze(-1)
        self.gradient = self.scale * slope - (self.mean - self.prior_mean)  # b
        self.step = self.covariance @ self.gradient  # S b
        self.movement = torch.zeros_like(self.mean)
        self.change = 0.0

    @torch.no_grad()
    def single_changes(self) -> Tensor:
        """Δ of each weight on its own, (P,); NaN for those that are out."""
        variance = self.covariance.diagonal()
        fit = -(0.5 * self.mean + self.step) * self.mean / variance
        return fit - 0.5 * variance.log() + 0.5 * self.prior_mean.square()

    @torch.no_grad()
    def change_of(self, group: Tensor) -> float:
        """Δ of a group of weights (k,), with linear effect."""
        factor = torch.linalg.cholesky(self.covariance[group[:, None], group])
        solved = torch.cholesky_solve(self.mean[group, None], factor).squeeze(-1)
        fit = -(0.5 * self.mean[group] + self.step[group]) @ solved
        volume = factor.diagonal().log().sum()
        return float(fit - volume + 0.5 * self.prior_mean[group].square().sum())

    @torch.no_grad()
    def remove(self, group: Tensor) -> None:
        """Take a group of weights (k,) out, with linear effect."""
        self.change += self.change_of(group)
        half, factor = self._half(group)
        self.movement -= _through(half, factor, self.mean[group])
        self.mean -= _through(half, factor, self.mean[group])
        self._condition(group, half, factor)
        self.mean[group] = self.movement[group] = 0

    def _half(self, group: Tensor) -> tuple[Tensor, Tensor]:
        """L⁻¹ S_g: (k x P), with L Lᵀ = S_gg."""
        factor = torch.linalg.cholesky(self.covariance[group[:, None], group])
        half = torch.linalg.solve_triangular(factor, self.covariance[group], upper=False)
        return half, factor

    def _condition(self, group: Tensor, half: Tensor, factor: Tensor) -> None:
        """S becomes S', and S b becomes S' b."""
        self.step -= _through(half, factor, self.step[group])
        self.step[group] = 0
        self.covariance.addmm_(half.mT, half, alpha=-1)
        self.covariance[group] = 0  # rounding brings no weight back
        self.covariance[:, group] = 0


class UnitEvidence(LocalEvidence):
    """Hidden units as groups, whose loss changes the outputs by what a forward pass says.

    Parameters
    ----------
    laplace
        Any posterior mean.
    groups
        Indices of each unit's weights.
    effects
        d, the change of the outputs without each unit, (N x C x U).
    compensate
        Whether the other weights make up for a unit.
    """

    @torch.no_grad()
    def __init__(
        self,
        laplace: LinearizedLaplace,
        groups: Sequence[Tensor],
        effects: Tensor,
        *,
        compensate: bool = True,
    ) -> None:
        super().__init__(laplace)
        self.groups, self.compensate = list(groups), compensate
        if self.shift is not None:
            moved = torch.zeros(len(self.scale), len(groups)).to(effects)
            for j, group in enumerate(groups):
                moved[group, j] = self.shift[group]
            effects = effects - self.training.matmul(moved)
        whitened = self.root.t_apply(effects)  # Rᵀ d
        flat = whitened.flatten(0, 1)
        self.products = flat.mT @ flat  # dᵀ Λ d, (U x U)
        self.slopes = (self.residual.unsqueeze(-1) * effects).sum((0, 1))  # ρᵀ d, (U,)
        self.forces = self.scale.unsqueeze(-1) * self.training.t_matmul(self.root.apply(whitened))
        self.answers = self.covariance @ self.forces  # S M, (P x U)
        self.deviations = torch.stack(
            [0.5 * (self.mean[g] - self.prior_mean[g]).square().sum() for g in self.groups]
        )
        self.out = torch.zeros_like(self.slopes)  # 1 for units that are out
        self.volume = 0.0

    @torch.no_grad()
    def unit_changes(self) -> Tensor:
        """Δ of each unit, given those that are out, (U,); -inf for them."""
        return self._totals()[0] - self.change

    @torch.no_grad()
    def remove_unit(self, unit: int) -> None:
        """Take a unit out."""
        totals, volumes = self._totals()
        self.change, self.volume = float(totals[unit]), float(volumes[unit])
        group = self.groups[unit]
        half, factor = self._half(group)
        rest = torch.linalg.solve_triangular(factor, self.answers[group], upper=False)
        self.answers -= half.mT @ rest
        self.answers[group] = 0
        self._condition(group, half, factor)
        self.out[unit] = 1
        if self.compensate:
            self.movement = -self.answers @ self.out

    def _totals(self) -> tuple[Tensor, Tensor]:
        """The change by all that is out and each further unit, and what volumes add to it."""
        out = self.out
        slopes = out @ self.slopes + self.slopes
        both = out @ self.products
        squares = out @ both + 2 * both + self.products.diagonal()
        fit = slopes - 0.5 * squares + out @ self.deviations + self.deviations
        forces = (self.forces @ out).unsqueeze(-1) + self.forces  # M of the set
        answers = (self.answers @ out).unsqueeze(-1) + self.answers
        gain = 0.5 * (forces * answers).sum(0) - self.gradient @ answers
        volumes = torch.full_like(slopes, self.volume)
        for j, group in enumerate(self.groups):
            if out[j]:
                fit[j] = -torch.inf
                continue
            factor = torch.linalg.cholesky(self.covariance[group[:, None], group])
            volumes[j] -= factor.diagonal().log().sum()
            rest = torch.linalg.solve_triangular(
                factor, torch.stack([answers[group, j], self.step[group]], -1), upper=False
            )
            gain[j] += (rest[:, 1] - 0.5 * rest[:, 0]) @ rest[:, 0]
        return fit + volumes + (gain if self.compensate else 0.0), volumes


def _through(half: Tensor, factor: Tensor, values: Tensor) -> Tensor:
    """S_:g S_gg⁻¹ values, (P,)."""
    rest = torch.linalg.solve_triangular(factor, values.unsqueeze(-1), upper=False)
    return (half.mT @ rest).squeeze(-1)
