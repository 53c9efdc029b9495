"""Predictives of targets that each depend on one standard normal variable z: quadrature over z."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import Self

from lingp.likelihoods.predictives.draws import LatentPredictive
from lingp.likelihoods.predictives.importance import product_or_joint
from lingp.likelihoods.predictives.quadrature import (
    LOG_NORMAL,
    NUM_NODES,
    log_integral,
    normal_mean,
    normal_panels,
    row_chunks,
)

_PANELS = 24  # about as many as a row ends up with, at most


class GivenVariable(ABC):
    """Every target of some rows given its z; values have shape (... x n x T) like z."""

    @abstractmethod
    def rows(self, index: slice | Tensor) -> Self:
        """Some of the rows."""

    @abstractmethod
    def moments(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """E y, Var E[y | f] and E Var[y | f] given z, (... x n x M)."""

    @abstractmethod
    def log_joint(self, y: Tensor, z: Tensor) -> Tensor:
        """log p(y | z) - z²/2."""

    @abstractmethod
    def cdf(self, y: Tensor, z: Tensor) -> Tensor:
        """P(Y <= y | z)."""

    @abstractmethod
    def moment_panels(self) -> Tensor:
        """First breakpoints for the moments, (B + 1 x n x 1 or T)."""

    @abstractmethod
    def panels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """First breakpoints for `log_joint`, (B + 1 x n x T), and its peak (n x T)."""


@dataclass(frozen=True)
class OneVariablePredictive(LatentPredictive):
    """p(y_n) where moments, intervals and the density of one target are integrals over one z.

    The joint log density of several targets factorises where the covariance does; otherwise it is
    quasi-Monte-Carlo with the joint covariance.
    """

    @property
    @abstractmethod
    def given(self) -> GivenVariable:
        """All rows, given z."""

    @property
    @abstractmethod
    def coupling(self) -> Tensor:
        """Covariances that couple targets of a datum, (N x ...): nonzero where they do."""

    @abstractmethod
    def joint_log_prob(self, rows: Tensor, y: Tensor) -> Tensor:
        """log p(y_n) of some rows by number (B,), whose targets are coupled, (B,)."""

    @property
    def filler(self) -> float:
        """A valid target, put where targets are missing."""
        return 0.0

    def _chunks(self, width: int) -> Iterator[tuple[slice, GivenVariable]]:
        """Some rows, few enough for quadrature of `width` functions of each."""
        for rows in row_chunks(len(self.location), NUM_NODES * _PANELS * width):
            yield rows, self.given.rows(rows)

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        centre = self.given.moments(torch.zeros_like(self.location[:, :1]))[0].detach()
        parts = [_moments_of(given, centre[rows]) for rows, given in self._chunks(centre.shape[-1])]
        mean, epistemic, aleatoric = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, epistemic, aleatoric

    def log_prob_each(self, y: Tensor) -> Tensor:
        """log p(y_nt) of each target on its own, (N x T); zero where it is missing."""
        here, values = self.beside(y)
        missing = values.isnan()
        values = torch.where(missing, self.filler, values)
        chunks = here._chunks(values.shape[-1])
        parts = [_log_prob_of(given, values[rows]) for rows, given in chunks]
        return torch.where(missing, 0.0, torch.cat(parts))

    def log_prob(self, y: Tensor) -> Tensor:
        observed = ~self.beside(y)[1].isnan()
        each = self.log_prob_each(y)
        return product_or_joint(
            each, observed, self.coupling, lambda rows: self.joint_log_prob(rows, y)
        )

    @torch.no_grad()
    def cdf(self, y: Tensor) -> Tensor:
        return torch.cat([_cdf_of(given, y[rows]) for rows, given in self._chunks(y.shape[-1])])


def _moments_of(given: GivenVariable, centre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    def terms(z: Tensor, index: Tensor) -> Tensor:
        mean, between, within = given.rows(index).moments(z)
        off = mean - centre[index]
        return torch.stack([off, off.square() + between, within])

    off, squared, within = normal_mean(terms, given.moment_panels())
    return centre + off, (squared - off.square()).clamp(min=0), within


def _log_prob_of(given: GivenVariable, y: Tensor) -> Tensor:
    def log_integrand(z: Tensor, index: Tensor) -> Tensor:
        return given.rows(index).log_joint(y[index], z)

    return log_integral(log_integrand, *given.panels(y)) - LOG_NORMAL


def _cdf_of(given: GivenVariable, y: Tensor) -> Tensor:
    def below(z: Tensor, index: Tensor) -> Tensor:
        return given.rows(index).cdf(y[index], z)

    return normal_mean(below, normal_panels(y), 1e-8)
