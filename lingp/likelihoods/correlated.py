"""Gaussian noise that is correlated between the outputs of a datum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lingp.likelihoods.base import as_numbers
from lingp.likelihoods.gaussian import GaussianNoise
from lingp.likelihoods.predictives.draws import normal_like
from lingp.likelihoods.roots import CurvatureRoot, DenseRoot, SharedRoot
from lingp.likelihoods.targets import flatten_targets, split_missing
from lingp.runtime.described import described


@described(covariance=lambda noise: torch.eye(len(noise.raw_scale), dtype=torch.float64))
class CorrelatedGaussian(GaussianNoise):
    """log p(y | f) = log N(y; f, Σ),  Σ = L Lᵀ (C x C), the same for all data.

    z = L⁻¹ (y - f),   r = L⁻ᵀ z,   R = L⁻ᵀ,   Λ = Σ⁻¹.

    Of a datum with missing targets, the observed ones have their marginal N(f_o, Σ_oo).

    The hyperparameters are `raw_scale`, the logarithms of L's diagonal, and `raw_coupling`, the
    entries L_ij / L_ii below it, row by row: any values of them give a positive definite Σ.

    Parameters
    ----------
    covariance
        Initial noise covariance Σ, (C x C).
    """

    raw_scale: torch.nn.Parameter
    raw_coupling: torch.nn.Parameter

    def __init__(self, covariance: Sequence[Sequence[float]] | Tensor) -> None:
        super().__init__()
        scale, coupling = _raw(_as_covariance(covariance))
        self.register_parameter("raw_scale", torch.nn.Parameter(scale))
        # one output has none, and what is empty can't be searched over
        self.register_parameter(
            "raw_coupling", torch.nn.Parameter(coupling, requires_grad=len(coupling) > 0)
        )

    @property
    def factor(self) -> Tensor:
        """L, lower triangular with positive diagonal, (C x C)."""
        num_outputs = len(self.raw_scale)
        unit = torch.eye(num_outputs, dtype=self.raw_scale.dtype, device=self.raw_scale.device)
        unit = unit.index_put(_below(num_outputs), self.raw_coupling)
        return self.raw_scale.exp().unsqueeze(-1) * unit

    @property
    def covariance(self) -> Tensor:
        """Σ, (C x C); settable."""
        factor = self.factor
        return factor @ factor.mT

    @covariance.setter
    def covariance(self, value: Sequence[Sequence[float]] | Tensor) -> None:
        covariance, num_outputs = _as_covariance(value), len(self.raw_scale)
        if len(covariance) != num_outputs:
            raise ValueError(
                f"covariance: expected {num_outputs} x {num_outputs} numbers, "
                f"got {tuple(covariance.shape)}"
            )
        scale, coupling = _raw(covariance)
        self.initialize(raw_scale=scale.to(self.raw_scale), raw_coupling=coupling.to(scale))

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        num_outputs = math.prod(output_shape)
        if len(self.raw_scale) != num_outputs:
            raise ValueError(
                f"covariance: is for {len(self.raw_scale)} outputs, but the network has "
                f"{num_outputs}; give a covariance with a row and a column per output"
            )
        return flatten_targets(y, output_shape, dtype, allow_missing=True)

    def _observed_factor(self, observed: Tensor, f: Tensor) -> Tensor:
        """Per datum, the factor of Σ's observed block and, in missing places, of I, (N x C x C)."""
        covariance = self.covariance.to(f.device)
        both = observed.unsqueeze(-1) & observed.unsqueeze(-2)
        unit = torch.eye(len(covariance), dtype=covariance.dtype, device=f.device)
        return torch.linalg.cholesky(torch.where(both, covariance, unit)).to(f)

    def _whitened(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """L⁻¹ (y - f) as columns, (... x N x C x 1), with L of each datum and what was observed."""
        y, observed = split_missing(y)
        factor = self._observed_factor(observed, f)
        residual = (observed * (y - f)).unsqueeze(-1)
        return torch.linalg.solve_triangular(factor, residual, upper=False), factor, observed

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        white, factor, observed = self._whitened(y, f)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log()
        terms = 0.5 * (white.squeeze(-1).square() + math.log(2 * math.pi)) + log_det
        return -(observed * terms).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        white, factor, _ = self._whitened(y, f)
        return torch.linalg.solve_triangular(factor.mT, white, upper=True).squeeze(-1)

    def whitened_residual(self, y: Tensor, f: Tensor) -> Tensor:
        return self._whitened(y, f)[0].squeeze(-1)

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        observed = ~y.isnan()
        if bool(observed.all()):
            return SharedRoot(_inverse_transpose(self.factor).to(f), len(f))
        root = _inverse_transpose(self._observed_factor(observed, f))
        return DenseRoot(observed.unsqueeze(-1) * root)

    def conditional_variance(self, f: Tensor) -> Tensor:
        return self.factor.square().sum(-1).to(f).expand_as(f)

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return f + normal_like(f, generator) @ self.factor.to(f).mT

    def noise_covariance(self, f: Tensor) -> Tensor:
        return self.covariance.to(f)

    def extra_repr(self) -> str:
        values = ", ".join(f"{value:.4g}" for value in self.covariance.detach().diagonal())
        return f"{len(self.raw_scale)} outputs, variances ({values})"


def _as_covariance(value: Sequence[Sequence[float]] | Tensor) -> Tensor:
    """A symmetric positive definite matrix in float64, or an error that says what is wrong."""
    matrix = as_numbers("covariance", value, "a matrix of numbers")
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ValueError(
            f"covariance: expected a square matrix (C, C), got {tuple(matrix.shape)}; "
            "for independent outputs use Gaussian(noise=...)"
        )
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"covariance: expected finite numbers, got {matrix.tolist()}")
    asymmetry = float((matrix - matrix.mT).abs().max())
    if asymmetry > 1e-6 * float(matrix.abs().max()):
        raise ValueError(f"covariance: expected a symmetric matrix, got {matrix.tolist()}")
    matrix = 0.5 * (matrix + matrix.mT)
    if int(torch.linalg.cholesky_ex(matrix).info) > 0:
        smallest = float(torch.linalg.eigvalsh(matrix)[0])
        raise ValueError(
            f"covariance: expected a positive definite matrix, but its smallest eigenvalue is "
            f"{smallest:.3g}"
        )
    return matrix


def _below(num_outputs: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of the entries below the diagonal."""
    rows, columns = torch.tril_indices(num_outputs, num_outputs, -1)
    return rows, columns


def _raw(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """log L_ii (C,) and L_ij / L_ii below the diagonal."""
    factor = torch.linalg.cholesky(covariance)
    diagonal = factor.diagonal()
    coupling = (factor / diagonal.unsqueeze(-1))[_below(len(covariance))]
    return diagonal.log(), coupling


def _inverse_transpose(factor: Tensor) -> Tensor:
    """L⁻ᵀ: the root itself is stored, so this is what is asked for."""
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor.mT, eye, upper=True)
