"""Every common scale of prior variances and curvature from one eigendecomposition.

With Φ the whitened Jacobian at some prior variances Σ0 and curvature root R, and
Φᵀ Φ = V diag(λ) Vᵀ, the variances s Σ0 and the curvature t Λ (noise 1/t times as large) give

    log det     Σ_i log(1 + st λ_i)
    Cov f*      s [ S* + Q* diag(1 / (1 + st λ)) Q*ᵀ ],    Q* = J* Σ0^{1/2} V,
                                                           S* = J* Σ0 J*ᵀ - Q* Q*ᵀ
    mean f*     f_lin(μ0) + st Q* (b / (1 + st λ)),        b = Vᵀ Φᵀ z       (quadratic likelihoods)

S* is the prior variance no datum speaks of; in weight space V is square and S* = 0. In function
space Φ Φᵀ = U diag(λ) Uᵀ and V = Φᵀ U diag(λ^{-1/2}) is never formed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference.exact import Exact, as_method
from lingp.inference.factorize import ROUNDING_LIMIT, rounding_loss
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_space import WeightSpace, weighted_ggn
from lingp.likelihoods import Gaussian
from lingp.linalg.psd import nearest_psd
from lingp.linearization import Factors
from lingp.operators import diagonal_blocks, gram
from lingp.runtime.memory import available_memory

_KEPT_SHARE = 0.25  # of free memory, for rows in the eigenbasis


class Spectrum:
    """The eigendecomposition of Φ Φᵀ or Φᵀ Φ at the current hyperparameters, which are scale 1.

    Parameters
    ----------
    laplace
        A model for which `works_in_a_space` and `has_fixed_curvature` hold. Its hyperparameters may
        move afterwards.
    with_vectors
        Whether eigenvectors are wanted, which take longer.

    Attributes
    ----------
    eigenvalues
        λ, (k,): all P of them in weight space, all N·K in function space.
    vectors
        V (P x P) in weight space, U (N·K x N·K) in function space; empty if they aren't wanted.
    in_weight_space
        Whether the decomposition is that of Φᵀ Φ.
    residual, coordinates
        z, the whitened residual at the prior's mean (N x K), and b (k,); for a refitted mean.
    """

    @torch.no_grad()
    def __init__(self, laplace: LinearizedLaplace, *, with_vectors: bool = True) -> None:
        self.laplace = laplace
        self.in_weight_space = as_method(laplace.method) == Exact(WeightSpace)
        self._variances, noise = laplace.prior.variances(), _common_noise(laplace)
        self._noise = None if noise is None else noise.clone()  # which may be the raw value itself
        self._root = laplace.curvature_root()
        squared = self._squared_jacobian()
        if with_vectors:
            values, self.vectors = torch.linalg.eigh(squared)
        else:
            values, self.vectors = torch.linalg.eigvalsh(squared), squared.new_empty(0)
        self.eigenvalues = values.clamp(min=0)
        if laplace.mean == "refit":
            self.residual = laplace.data_term.whitened_residual(laplace.prior_outputs())
            self.coordinates = self._coordinates()

    def scales(self) -> tuple[Tensor, Tensor]:
        """The current s and t, 0-d, with a graph: of an isotropic prior and of common noise."""
        prior, like = self.laplace.prior, self.laplace.training.outputs
        s, t = like.new_ones(()), like.new_ones(())
        if prior.isotropic:
            s = (prior.variances()[0] / self._variances[0]).to(like)
        noise = _common_noise(self.laplace)
        if noise is not None and self._noise is not None:
            t = (self._noise / noise).to(like)
        return s, t

    def log_determinant(self, st: Tensor) -> Tensor:
        """log det(I + Φ Φᵀ), 0-d."""
        return (st * self.eigenvalues).log1p().sum()

    def kept(self, st: Tensor | float) -> Tensor:
        """1 / (1 + st λ): how much of each direction's prior variance is left, (k,)."""
        return 1 / (1 + st * self.eigenvalues)

    @torch.no_grad()
    def resolved(self, tolerance: float, st: float | None = None) -> bool:
        """Whether rounding of the eigenvalues leaves what is computed from them intact.

        n·eps·λ_max also bounds the error of log det(I + Φ Φᵀ): one below `tolerance` nats will do.
        By default at the current scales.
        """
        if st is None:
            st = float(torch.stack(self.scales()).prod())
        largest = st * float(self.eigenvalues.max())
        loss = rounding_loss(largest, len(self.eigenvalues), self.eigenvalues.dtype)
        return loss < max(ROUNDING_LIMIT, tolerance)

    def _coordinates(self) -> Tensor:
        """b = Vᵀ Φᵀ z, (k,)."""
        if not self.in_weight_space:
            return self.eigenvalues.sqrt() * (self.vectors.mT @ self.residual.reshape(-1))
        weighted = self._root.apply(self.residual.unsqueeze(-1))
        gradient = self.laplace.training.t_matmul(weighted).squeeze(-1)
        return self.vectors.mT @ (self._scale() * gradient)

    def rows(self, data: TrainingSet) -> Iterator[tuple[slice, ScaledRows]]:
        """Some rows of data after the other."""
        each = 4 * data.outputs[0].nbytes * len(self.eigenvalues)
        for rows, factors in data.pieces(max(1, data.chunk_bytes // each)):
            with torch.no_grad():
                basis, unseen = self._basis(factors)
                mean = data.outputs[rows]
                if self.laplace.mean == "refit":
                    deviation = self.laplace.prior_deviation().unsqueeze(-1)
                    mean = mean + factors.matmul(deviation).squeeze(-1)
            yield rows, ScaledRows(self, mean, basis, unseen)

    def _basis(self, factors: Factors) -> tuple[Tensor, Tensor | None]:
        """Q* (n x C x k) and S* (n x C x C), None where it is zero."""
        training, shape = self.laplace.training, (factors.num_data, factors.num_outputs)
        if self.in_weight_space:
            rows = factors.jacobian().flatten(0, 1) * self._scale()
            return (rows @ self.vectors).unflatten(0, shape), None
        variances = self._variances.to(training.outputs)
        cross = gram(training.factors(), factors, variances=variances)  # (N·C, n·C)
        cross = cross.view(training.num_data, training.num_outputs, -1)
        basis = self._root.t_apply(cross).flatten(0, 1).mT @ self.vectors  # (n·C, N·K)
        basis = (basis * self._inverse_root()).unflatten(0, shape)
        return basis, nearest_psd(diagonal_blocks(factors, variances) - basis @ basis.mT)

    def _inverse_root(self) -> Tensor:
        """λ^{-1/2}, zero where rounding has eaten the eigenvalue."""
        tiny = len(self.eigenvalues) * torch.finfo(self.eigenvalues.dtype).eps
        seen = self.eigenvalues > tiny * self.eigenvalues.max()
        return torch.where(seen, self.eigenvalues, torch.inf).rsqrt()

    def _squared_jacobian(self) -> Tensor:
        """Φᵀ Φ (P x P) or Φ Φᵀ (N·K x N·K), in the space the method works in."""
        training, root = self.laplace.training, self._root
        if self.in_weight_space:
            scale = self._scale()
            return scale.unsqueeze(-1) * weighted_ggn(training, root) * scale
        variances = self._variances.to(training.outputs)
        if self.laplace.prior.isotropic:
            return root.congruence(variances[0] * training.unit_gram())
        return root.congruence(gram(training.factors(), variances=variances))

    def _scale(self) -> Tensor:
        """The diagonal of Σ0^{1/2}, (P,)."""
        training = self.laplace.training
        return training.per_weight(self._variances.to(training.outputs)).sqrt()


@dataclass(frozen=True)
class ScaledRows:
    """Rows of inputs in the eigenbasis: their posterior at every scale.

    Attributes
    ----------
    spectrum
        The eigendecomposition.
    mean
        f_lin(μ0), for the network's mean its outputs, (n x C).
    basis
        Q*, (n x C x k).
    unseen
        S*, (n x C x C); None where it is zero.
    """

    spectrum: Spectrum
    mean: Tensor
    basis: Tensor
    unseen: Tensor | None

    @classmethod
    def cat(cls, parts: Sequence[ScaledRows]) -> ScaledRows:
        """The rows of several pieces."""
        mean, basis = torch.cat([p.mean for p in parts]), torch.cat([p.basis for p in parts])
        unseen = [p.unseen for p in parts if p.unseen is not None]
        return cls(parts[0].spectrum, mean, basis, torch.cat(unseen) if unseen else None)

    def moments(self, s: Tensor | float, t: Tensor | float) -> tuple[Tensor, Tensor]:
        """Mean (n x C) and covariance (n x C x C) of each row's outputs, differentiable."""
        spectrum, mean = self.spectrum, self.mean
        kept = spectrum.kept(s * t)
        if spectrum.laplace.mean == "refit":
            mean = mean + s * t * (self.basis @ (kept * spectrum.coordinates))
        covariance = (self.basis * kept) @ self.basis.mT
        return mean, s * (covariance if self.unseen is None else covariance + self.unseen)


def basis_fits(data: TrainingSet, rank: int) -> bool:
    """Whether so many coordinates of every output take little of the free memory."""
    size = data.outputs.nbytes * rank
    return size < _KEPT_SHARE * available_memory(data.outputs.device)


def works_in_a_space(laplace: LinearizedLaplace) -> bool:
    """Whether the inference method is exact, so that its matrix has an eigendecomposition."""
    return isinstance(as_method(laplace.method), Exact)


def has_fixed_curvature(laplace: LinearizedLaplace) -> bool:
    """Whether the evidence's curvature doesn't move with the posterior's mean."""
    return laplace.mean == "network" or laplace.data_term.is_quadratic


def has_spectral_evidence(laplace: LinearizedLaplace) -> bool:
    """Whether one eigendecomposition gives the evidence at all values of what is free."""
    return works_in_a_space(laplace) and has_fixed_curvature(laplace) and _only_scales(laplace)


def _only_scales(laplace: LinearizedLaplace) -> bool:
    """Whether all that is free is an isotropic precision and one noise variance."""
    scales = list(laplace.prior.parameters()) if laplace.prior.isotropic else []
    if _common_noise(laplace) is not None:
        scales.append(laplace.likelihood.raw_noise)
    known = {id(p) for p in scales}
    free = [p for m in (laplace.prior, laplace.likelihood) for p in m.parameters()]
    return all(id(p) in known for p in free if p.requires_grad)


def _common_noise(laplace: LinearizedLaplace) -> Tensor | None:
    """The noise variance that divides all curvature, 0-d with a graph, where there is one."""
    likelihood = laplace.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.raw_noise.dim() == 0:
        return likelihood.noise
    return None
