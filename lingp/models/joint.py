"""What `LinearizedGP.predict_joint` returns."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lingp.likelihoods import CurvatureRoot, Likelihood
from lingp.likelihoods.predictives.gaussian import marginal_log_prob, total_factor
from lingp.likelihoods.predictives.importance import log_terms, relative_error
from lingp.linalg.psd import square_root
from lingp.models.layout import TargetLayout


class JointPrediction(ABC):
    """Predictive distribution of the targets at n inputs, all together.

        p(y_1 .. y_n) = ∫ Π_n p(y_n | f_n) N(f; mean, covariance) df

    Moments of class labels are those of the one-hot indicators.

    Attributes
    ----------
    layout
        Shapes of the targets, and the likelihood.
    mean_of
        Whose mean it is: "network" or "refit".
    """

    layout: TargetLayout
    mean_of: str

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E y, (n, *moment shape)."""

    @property
    @abstractmethod
    def covariance(self) -> Tensor:
        """Cov y, (n·M x n·M), with row n·M + m for moment m of datum n."""

    @abstractmethod
    def log_prob(self, y: Any) -> Tensor:
        """log p(y_1 .. y_n), 0-d."""

    @abstractmethod
    def standard_error(self, y: Any) -> Tensor:
        """Standard error of `log_prob`, 0-d; zero where it is exact."""

    @abstractmethod
    def sample(self, num_samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Draws of y, rows dependent through f, (num_samples, n, *target shape)."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.layout.num_rows} rows, output shape "
            f"{self.layout.output_shape}, mean of "
            f"{'the network' if self.mean_of == 'network' else 'the refitted model'})"
        )


class GaussianJointPrediction(JointPrediction):
    """Gaussian noise, exactly: y ~ N(mean, covariance + noise)."""

    def __init__(
        self, layout: TargetLayout, mean_of: str, location: Tensor, covariance: Tensor
    ) -> None:
        self.layout = layout
        self.mean_of = mean_of
        self._location = location  # (n, C)
        self._latent = covariance  # (n·C, n·C)
        self._noise = self._noise_covariance(layout.likelihood)

    def _noise_covariance(self, likelihood: Likelihood) -> Tensor:
        """Of y given f, (n·C x n·C)."""
        shape = (*self._location.shape, self._location.shape[1])
        predictive = likelihood.predictive(self._location, self._location.new_zeros(shape))
        blocks = predictive.noise.expand(shape)  # type: ignore[attr-defined]
        return torch.block_diag(*blocks)

    @property
    def mean(self) -> Tensor:
        return self.layout.moments(self._location)

    @property
    def covariance(self) -> Tensor:
        return self._latent + self._noise

    def log_prob(self, y: Any) -> Tensor:
        targets, noise = self.layout.checked(y), self._noise
        if targets.dim() == 3:
            noise = self._noise_covariance(self.layout.likelihood.at(targets[..., 1]))
            targets = targets[..., 0]
        residual = (targets - self._location).reshape(1, -1)
        return marginal_log_prob(residual, self._latent.unsqueeze(0), noise.unsqueeze(0)).squeeze(0)

    def standard_error(self, y: Any) -> Tensor:
        return torch.zeros_like(self.log_prob(y))

    def sample(self, num_samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        _check_count(num_samples)
        scale = total_factor(self._latent.unsqueeze(0), self._noise.unsqueeze(0)).squeeze(0)
        noise = _normal(num_samples, scale, generator)
        return self.layout.values(_moved(self._location, scale, noise))


class DrawnJointPrediction(JointPrediction):
    """Any likelihood, by draws f_s of the function at all rows together.

    Moments are means over the draws. `log_prob` adds as many draws from the Laplace approximation
    of f given y, and where each target depends on one output, as many drawn one output after
    another, and weights all of them: accurate where y is far from what f predicts.
    """

    def __init__(
        self,
        layout: TargetLayout,
        mean_of: str,
        location: Tensor,
        covariance: Tensor,
        num_samples: int,
        generator: torch.Generator | None,
    ) -> None:
        self.layout = layout
        self.mean_of = mean_of
        self._location = location
        self._scale = square_root(covariance)
        self._noise = _normal(num_samples, self._scale, generator)  # (S, n·C)
        self._draws = _moved(location, self._scale, self._noise)  # (S, n, C)

    @property
    def mean(self) -> Tensor:
        means = self.layout.likelihood.conditional_mean(self._draws)
        return self.layout.moments(means.mean(0))

    @property
    def covariance(self) -> Tensor:
        likelihood = self.layout.likelihood
        means = likelihood.conditional_mean(self._draws)  # (S, n, M)
        centered = (means - means.mean(0)).flatten(1)
        between = centered.mT @ centered / len(means)
        within = torch.diag(likelihood.conditional_variance(self._draws).mean(0).flatten())
        num_targets = math.prod(likelihood.target_shape(self.layout.output_shape))
        num_indicators = means.shape[-1] // num_targets
        if num_indicators > 1:  # one-hot indicators: those of a label exclude each other
            p = means.unflatten(-1, (-1, num_indicators)).flatten(1, 2)  # (S, n·T, K)
            products = torch.einsum("snk,snl->nkl", p, p) / len(p)
            products.diagonal(dim1=-2, dim2=-1).zero_()
            within = within - torch.block_diag(*products)
        return between + within

    @torch.no_grad()
    def _log_terms(self, y: Any) -> Tensor:
        """Logarithms of numbers whose mean is p(y), S for each kind of nodes."""
        rows: Any = _AllRows(self.layout.likelihood, self._location.shape[1])
        location, scale = self._location.reshape(1, -1), self._scale.unsqueeze(0)
        return log_terms(rows, self.layout.checked(y), location, scale, self._noise).squeeze(1)

    def log_prob(self, y: Any) -> Tensor:
        terms = self._log_terms(y)
        return torch.logsumexp(terms, 0) - math.log(len(terms))

    def standard_error(self, y: Any) -> Tensor:
        return relative_error(self._log_terms(y), len(self._noise))

    def sample(self, num_samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        _check_count(num_samples)
        noise = _normal(num_samples, self._scale, generator)
        f = _moved(self._location, self._scale, noise)
        draws = self.layout.likelihood.sample(f, generator=generator)
        return self.layout.values(draws)


@dataclass(frozen=True)
class _AllRows:
    """The likelihood of n rows as that of one datum with n·C outputs."""

    likelihood: Likelihood
    num_outputs: int

    def _rows(self, f: Tensor) -> Tensor:
        """(... x 1 x n·C) -> (... x n x C)."""
        return f.squeeze(-2).unflatten(-1, (-1, self.num_outputs))

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self.likelihood.log_prob(y, self._rows(f)).sum(-1, keepdim=True)

    def log_prob_terms(self, y: Tensor, f: Tensor) -> Tensor | None:
        terms = self.likelihood.log_prob_terms(y, self._rows(f))
        return None if terms is None else terms.flatten(-2).unsqueeze(-2)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        return self.likelihood.residual(y, self._rows(f)).reshape(1, -1)

    def curvature_root(self, y: Tensor, f: Tensor) -> _BlockDiagonal:
        return _BlockDiagonal(self.likelihood.curvature_root(y, self._rows(f)))


@dataclass(frozen=True)
class _BlockDiagonal:
    """The roots of n rows as the root of one datum."""

    root: CurvatureRoot

    def t_apply(self, v: Tensor) -> Tensor:
        """(1 x n·C x S) -> (1 x n·K x S)."""
        rows = v.reshape(self.root.num_data, self.root.num_outputs, -1)
        return self.root.t_apply(rows).reshape(1, -1, v.shape[-1])


def joint_prediction(
    layout: TargetLayout,
    mean_of: str,
    location: Tensor,
    covariance: Tensor,
    *,
    num_samples: int,
    generator: torch.Generator | None,
) -> JointPrediction:
    """The joint predictive of n rows.

    Parameters
    ----------
    layout
        Shapes of the targets, and the likelihood.
    mean_of
        "network" or "refit".
    location
        Mean of f, (n x C).
    covariance
        Of f, (n·C x n·C).
    num_samples, generator
        Draws of f, where they are needed.
    """
    if num_samples < 2:
        raise ValueError(f"num_samples: expected at least 2, got {num_samples}")
    with torch.no_grad():
        if layout.likelihood.is_quadratic:
            return GaussianJointPrediction(layout, mean_of, location, covariance)
        return DrawnJointPrediction(layout, mean_of, location, covariance, num_samples, generator)


def _normal(num_samples: int, scale: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal draws, (S x n·C)."""
    shape = (num_samples, len(scale))
    return torch.randn(shape, generator=generator, dtype=scale.dtype, device=scale.device)


def _moved(location: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
    """location + scale noise_s, (S x n x C)."""
    return location + (noise @ scale.mT).view(len(noise), *location.shape)


def _check_count(num_samples: int) -> None:
    if num_samples < 1:
        raise ValueError(f"num_samples: expected at least 1, got {num_samples}")
