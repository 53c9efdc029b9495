"""The predictive of targets that each depend on one latent output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from lingp.likelihoods.conditional import ElementwiseConditional
from lingp.likelihoods.predictives.importance import log_evidence
from lingp.likelihoods.predictives.mass import first_panels
from lingp.likelihoods.predictives.one_variable import GivenVariable, OneVariablePredictive
from lingp.likelihoods.predictives.quadrature import normal_panels


@dataclass(frozen=True)
class _GivenOutput(GivenVariable):
    """p(y_c | f_c) with f = m + s z, m and s (n x C)."""

    likelihood: ElementwiseConditional
    mean: Tensor
    scale: Tensor

    def rows(self, index: slice | Tensor) -> _GivenOutput:
        return _GivenOutput(self.likelihood.rows(index), self.mean[index], self.scale[index])

    def _output(self, z: Tensor) -> Tensor:
        return self.mean + self.scale * z

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        f = self._output(z)
        mean = self.likelihood.conditional_mean(f)
        return mean, torch.zeros_like(mean), self.likelihood.conditional_variance(f)

    def log_joint(self, y: Tensor, z: Tensor) -> Tensor:
        return self.likelihood.log_prob_each(y, self._output(z)) - 0.5 * z.square()

    def cdf(self, y: Tensor, z: Tensor) -> Tensor:
        return self.likelihood.cdf_each(y, self._output(z))

    def moment_panels(self) -> Tensor:
        return normal_panels(self.mean[:, :1])

    def panels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return first_panels(self.likelihood, y, self.mean, self.scale)


@dataclass(frozen=True)
class ElementwisePredictive(OneVariablePredictive):
    """p(y_n) = ∫ Π_c p(y_nc | f_c) N(f | m_n, S_n) df, by quadrature over each f_c."""

    likelihood: ElementwiseConditional

    @cached_property
    def _variance(self) -> Tensor:
        """Variance of each latent output, (N x C); its root must have a derivative."""
        smallest = torch.finfo(self.location.dtype).tiny
        return self.covariance.diagonal(dim1=-2, dim2=-1).clamp(min=smallest)

    @cached_property
    def given(self) -> _GivenOutput:
        return _GivenOutput(self.likelihood, self.location, self._variance.sqrt())

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        exact = self.likelihood.exact_moments(self.location, self._variance)
        return super().moments if exact is None else exact

    @property
    def coupling(self) -> Tensor:
        return self.covariance - torch.diag_embed(self.covariance.diagonal(dim1=-2, dim2=-1))

    def joint_log_prob(self, rows: Tensor, y: Tensor) -> Tensor:
        return log_evidence(self.likelihood, y[rows], self.location[rows], self.covariance[rows])

    @property
    def filler(self) -> float:
        return self.likelihood.filler

    @property
    def cdf_support(self) -> Literal["counts", "reals"] | None:
        return self.likelihood.cdf_support

    def _around(self) -> tuple[Tensor, Tensor]:
        if self.cdf_support == "counts":
            return self.location, self.location
        spread = (self._variance + self.likelihood.conditional_variance(self.location)).sqrt()
        return self.location, torch.where(spread.isfinite(), spread, 1.0)
