"""Leave-one-out predictive densities in closed form, from the posterior of all data.

With the posterior N(m_n, C_n) of the outputs at training datum n, residual r_n and curvature root
R_n there, the posterior of these outputs given all other data (the cavity) is

    C_-n = C_n + C_n R_n D_n⁻¹ R_nᵀ C_n,     D_n = I - R_nᵀ C_n R_n = [(I + Φ Φᵀ)⁻¹]_nn
    m_-n = m_n - C_-n r_n

(Rasmussen and Williams, 2006, section 5.4.2, with C_n in place of a kernel's inverse, so that
singular R_n need no special case; Opper and Winther, 2000, for likelihoods that aren't Gaussian.)
For a Gaussian likelihood and the refitted mean this is exactly what N refits give. For other
likelihoods the other data's quadratic approximation stays where it is, at the mean of all data, and
the datum's own is taken out: one Newton step of the refit. With the network's mean it is the same
step away from the network, as if it were the mode.

A datum with a weight is left out as a whole, w_n and all, not one of w_n repetitions: weights need
not be whole numbers. Its density counts w_n times in the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference.data_term import DataTerm
from lingp.inference.factorize import OutOfRangeError
from lingp.inference.features import WhitenedJacobian
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.training_covariance import training_covariance
from lingp.inference.tuning.scaled_spectrum import ScaledRows, ScaledSpectrum, works_in_a_space
from lingp.inference.tuning.spectrum import CommonScales, has_spectral_evidence
from lingp.runtime.memory import available_memory

_KEPT_SHARE = 0.25  # of free memory, for rows in the eigenbasis


@dataclass(frozen=True)
class LeaveOneOut:
    """The posterior of each training datum's outputs given all other data.

    Attributes
    ----------
    mean
        m_-n, (N x C).
    covariance
        C_-n, (N x C x C).
    data
        The likelihood of the training data.
    """

    mean: Tensor
    covariance: Tensor
    data: DataTerm

    def log_predictive(self, method: str | None = None) -> Tensor:
        """log p(y_n | all other data), (N,), without the data's weights.

        Methods that draw always use the same numbers, so that results are repeatable and smooth in
        the hyperparameters.

        Parameters
        ----------
        method
            How the likelihood computes its predictive; its first method by default.
        """
        generator = torch.Generator(self.mean.device).manual_seed(0)
        predictive = self.data.likelihood.predictive(
            self.mean, self.covariance, method, generator=generator
        )
        return predictive.log_prob(self.data.targets)

    def total(self, method: str | None = None) -> Tensor:
        """Σ_n w_n log p(y_n | all other data), 0-d."""
        each = self.log_predictive(method)
        return (each if self.data.weights is None else self.data.weights * each).sum()


def leave_one_out(laplace: LinearizedLaplace) -> LeaveOneOut:
    """Cavity moments at the current hyperparameters, differentiable in them in grad mode.

    Raises
    ------
    ValueError
        If the data are spread over processes.
    """
    _refuse_shards(laplace)
    data, solution = laplace.data_term, laplace.solution()
    outputs, root = solution.outputs, solution.posterior.root.dense()
    covariance, inner = training_covariance(solution.posterior, root)
    mean, without = cavity(outputs, covariance, root, data.residual(outputs), inner)
    with torch.no_grad():
        posterior = solution.posterior
        if not isinstance(posterior.features, WhitenedJacobian):
            # what features leave out of the prior is there whatever the data are
            _, outside = posterior.at_data
            without = without if outside is None else without + outside
    return LeaveOneOut(mean, without, data)


def _refuse_shards(laplace: LinearizedLaplace) -> None:
    if not laplace.training.shards.alone:
        raise ValueError(
            "leave_one_out: not available with a process_group; use the evidence, validation "
            "data, or one process"
        )


def cavity(
    mean: Tensor, covariance: Tensor, root: Tensor, residual: Tensor, inner: Tensor
) -> tuple[Tensor, Tensor]:
    """m_-n and C_-n.

    Parameters
    ----------
    mean, covariance
        m_n (N x C) and C_n (N x C x C).
    root
        R_n, (N x C x K).
    residual
        r_n, (N x C).
    inner
        D_n, (N x K x K), positive definite.

    Raises
    ------
    OutOfRangeError
        If rounding has made some D_n indefinite.
    """
    factor, info = torch.linalg.cholesky_ex(inner)
    if bool(info.any()):
        rows = info.nonzero().reshape(-1).tolist()
        raise OutOfRangeError(
            f"leave-one-out: {len(rows)} data (the first is row {rows[0]}) determine an output "
            f"alone, with a leverage that {inner.dtype} can't tell from one; use "
            'inference="function_space", dtype=torch.float64, or a larger noise or prior precision'
        )
    half = torch.linalg.solve_triangular(factor, root.mT @ covariance, upper=False)  # (N, K, C)
    without = covariance + half.mT @ half
    return mean - (without @ residual.unsqueeze(-1)).squeeze(-1), without


@dataclass(frozen=True)
class SpectralLeaveOneOut:
    """Σ_n w_n log p(y_n | all other data) from an eigendecomposition made before.

    Attributes
    ----------
    laplace
        The model, whose hyperparameters may have changed by common scales since.
    scales
        By how much they have.
    spectrum
        The eigendecomposition.
    rows
        The training data in the eigenbasis.
    coordinates
        b, (k,), for a refitted mean.
    """

    laplace: LinearizedLaplace
    scales: CommonScales
    spectrum: ScaledSpectrum
    rows: ScaledRows
    coordinates: Tensor | None

    def __call__(self) -> Tensor:
        data, spectrum = self.laplace.data_term, self.spectrum
        s, t = self.scales()
        kept = spectrum.kept(s * t)
        if self.coordinates is None:
            outputs = self.laplace.training.outputs
        else:
            moved = self.rows.moved(kept, self.coordinates, s * t)
            outputs = self.laplace.prior_outputs() + moved
        root = data.curvature_root(outputs).dense()
        covariance = self.rows.covariance(kept, s)
        if spectrum.in_weight_space:
            eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
            inner = eye - root.mT @ covariance @ root
        else:
            vectors = spectrum.vectors.view(len(outputs), root.shape[-1], -1)
            inner = (vectors * kept) @ vectors.mT
        mean, without = cavity(outputs, covariance, root, data.residual(outputs), inner)
        return LeaveOneOut(mean, without, data).total()

    def resolved(self, tolerance: float = 0.0) -> bool:
        """Whether rounding of the eigenvalues leaves the current value intact.

        Or wrong by less than `tolerance` nats, of which each datum has a share: every variance is
        off by as much.
        """
        with torch.no_grad():
            s, t = self.scales()
            share = tolerance / len(self.laplace.training.outputs)
            return self.spectrum.resolved(float(s * t), share)


def spectral_leave_one_out(laplace: LinearizedLaplace) -> SpectralLeaveOneOut | None:
    """One eigendecomposition for any scales, where they are all that is free and memory allows."""
    _refuse_shards(laplace)
    if not (works_in_a_space(laplace) and has_spectral_evidence(laplace)):
        return None
    training = laplace.training
    with torch.no_grad():
        rank = training.num_outputs * training.num_data
        rank = min(rank, training.num_parameters)
        size = training.outputs.numel() * rank * training.outputs.element_size()
        if size > _KEPT_SHARE * available_memory(training.outputs.device):
            return None
        spectrum = ScaledSpectrum.of(laplace)
        parts = [spectrum.rows(factors) for _, factors in training.chunks()]
        coordinates = None
        if laplace.mean == "refit":
            z = laplace.data_term.whitened_residual(laplace.prior_outputs())
            coordinates = spectrum.coordinates(z)
    return SpectralLeaveOneOut(
        laplace, CommonScales.of(laplace), spectrum, ScaledRows.cat(parts), coordinates
    )
