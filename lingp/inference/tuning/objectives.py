"""What hyperparameters are chosen by: the evidence, or leave-one-out predictive densities.

Each is computed with a posterior, or from one eigendecomposition (see `spectrum`). With u = Uᵀ z of
the whitened residual z at the prior's mean, and `rest` the part of its square outside the range of
Φ, the evidence at scales s and t is

    network mean  log p(y | f*) - ½ [ |Σ0^{-1/2} (θ* - μ0)|²/s + Σ_i log(1 + st λ_i) ]
    refit mean    log p(y | f = y) - ½ [ t (Σ_i u_i²/(1 + st λ_i) + rest) + Σ_i log(1 + st λ_i) ]
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.tuning.leave_one_out import LeaveOneOut, cavity, leave_one_out
from lingp.inference.tuning.spectrum import (
    ScaledRows,
    Spectrum,
    basis_fits,
    has_spectral_evidence,
)


class HyperparameterObjective(ABC):
    """A function of the hyperparameters of a model, to be maximised.

    Parameters
    ----------
    laplace
        The model.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    method: ClassVar[str] = "L-BFGS"

    def __init__(self, laplace: LinearizedLaplace) -> None:
        self.laplace = laplace

    @abstractmethod
    def value(self) -> Tensor:
        """The objective at the current hyperparameters, 0-d, differentiable in grad mode."""

    @abstractmethod
    def spectral(self) -> HyperparameterObjective | None:
        """The same from one eigendecomposition, where that is possible."""

    def resolved(self, tolerance: float) -> bool:
        """Whether rounding costs the current value less than `tolerance` nats."""
        return True


class LogEvidence(HyperparameterObjective):
    """log q(D)."""

    name = "evidence"
    words = "log marginal likelihood"

    def value(self) -> Tensor:
        fit, log_determinant = self.parts()
        return fit - 0.5 * log_determinant

    def parts(self) -> tuple[Tensor, Tensor]:
        """log p(y | f) - ½ |e|² at the mean, and log det(I + Φ Φᵀ), 0-d."""
        at = self.laplace.solution()
        fit = self.laplace.data_term.log_prob(at.outputs) - 0.5 * at.e.square().sum()
        return fit, at.occam.log_determinant() + at.occam.bound_gap()

    def spectral(self) -> LogEvidence | None:
        laplace = self.laplace
        return SpectralEvidence(laplace) if has_spectral_evidence(laplace) else None


class SpectralEvidence(LogEvidence):
    """The evidence of a model for which `has_spectral_evidence`, as a sum over eigenvalues."""

    method = "eigendecomposition"

    def __init__(self, laplace: LinearizedLaplace) -> None:
        super().__init__(laplace)
        self.spectrum = Spectrum(laplace, with_vectors=laplace.mean == "refit")
        with torch.no_grad():
            self._fit = (_network_fit if laplace.mean == "network" else _refit)(self.spectrum)

    def parts(self) -> tuple[Tensor, Tensor]:
        s, t = self.spectrum.scales()
        return self._fit(s, t), self.spectrum.log_determinant(s * t)

    def resolved(self, tolerance: float) -> bool:
        return self.spectrum.resolved(tolerance)


def _network_fit(spectrum: Spectrum) -> Callable[[Tensor, Tensor], Tensor]:
    laplace, training = spectrum.laplace, spectrum.laplace.training
    variances = training.per_weight(laplace.prior.variances().to(training.outputs))
    penalty = (laplace.prior_deviation().square() / variances).sum()
    return lambda s, t: laplace.data_term.log_prob(training.outputs) - 0.5 * penalty / s


def _refit(spectrum: Spectrum) -> Callable[[Tensor, Tensor], Tensor]:
    data, values = spectrum.laplace.data_term, spectrum.eigenvalues
    square = spectrum.laplace.training.shards.sum(spectrum.residual.square().sum())
    if spectrum.in_weight_space:
        # below rounding, an eigenvalue and its share of the residual are both noise
        tiny = len(values) * torch.finfo(values.dtype).eps * values.max()
        projected = spectrum.coordinates.square()
        misfit = torch.where(values > tiny, projected / values.clamp(min=tiny), 0.0)
        rest = (square - misfit.sum()).clamp(min=0)
    else:
        misfit = (spectrum.vectors.mT @ spectrum.residual.reshape(-1)).square()
        rest = torch.zeros_like(square)
    normalizer = data.log_prob(spectrum.laplace.prior_outputs()) + 0.5 * square  # log p(y | f = y)
    num_observed = data.num_observed

    def fit(s: Tensor, t: Tensor) -> Tensor:
        square = t * ((misfit * spectrum.kept(s * t)).sum() + rest)
        return normalizer + 0.5 * (num_observed * t.log() - square)

    return fit


class LeaveOneOutDensity(HyperparameterObjective):
    """Σ_n w_n log p(y_n | all other data).

    A scale of the mean that a rule finds is held as it is where a search starts: it has no
    derivative.
    """

    name = "leave_one_out"
    words = "leave-one-out log predictive density"

    def __init__(self, laplace: LinearizedLaplace) -> None:
        super().__init__(dataclasses.replace(laplace, mean_scale=laplace.scale_of_mean()))

    def value(self) -> Tensor:
        return leave_one_out(self.laplace).total()

    def spectral(self) -> LeaveOneOutDensity | None:
        laplace, training = self.laplace, self.laplace.training
        rank = min(training.num_outputs * training.num_data, training.num_parameters)
        possible = has_spectral_evidence(laplace) and basis_fits(training, rank)
        return SpectralLeaveOneOut(laplace) if possible else None


class SpectralLeaveOneOut(LeaveOneOutDensity):
    """The same of a model for which `has_spectral_evidence`, from its data in the eigenbasis."""

    method = "eigendecomposition"

    def __init__(self, laplace: LinearizedLaplace) -> None:
        super().__init__(laplace)
        self.spectrum = Spectrum(laplace)
        self._rows = ScaledRows.cat([rows for _, rows in self.spectrum.rows(laplace.training)])

    def value(self) -> Tensor:
        spectrum, laplace = self.spectrum, self.laplace
        data, (s, t) = laplace.data_term, spectrum.scales()
        outputs, covariance = self._rows.moments(s, t)
        root = data.curvature_root(outputs).dense()
        if spectrum.in_weight_space:
            eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
            inner = eye - root.mT @ covariance @ root
        else:
            vectors = spectrum.vectors.view(len(outputs), root.shape[-1], -1)
            inner = (vectors * spectrum.kept(s * t)) @ vectors.mT
        mean, without = cavity(outputs, covariance, root, data.residual(outputs), inner)
        return LeaveOneOut(mean, without, data, laplace.scale_of_mean()).total()

    def resolved(self, tolerance: float) -> bool:
        # every variance is off by as much, so that each datum has a share of the tolerance
        return self.spectrum.resolved(tolerance / self.laplace.training.num_data)


OBJECTIVES: dict[str, type[HyperparameterObjective]] = {
    kind.name: kind for kind in (LogEvidence, LeaveOneOutDensity)
}
