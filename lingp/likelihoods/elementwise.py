"""Likelihoods whose targets each depend on one latent output alone."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lingp.likelihoods.base import Likelihood
from lingp.likelihoods.predictives import AffineMixture, ElementwisePredictive, Predictive
from lingp.likelihoods.predictives.draws import random_normal
from lingp.likelihoods.roots import CurvatureRoot, DiagonalRoot
from lingp.likelihoods.targets import split_missing


class ElementwiseLikelihood(Likelihood):
    """log p(y | f) = Σ_c log p(y_c | f_c): R is diagonal, T = C.

    Subclasses write the scalar functions; missing targets are handled here. Where `has_known`,
    targets are (N x C x 2): the value and its known quantity (number of trials, exposure).
    """

    methods = ("quadrature", "monte_carlo")
    allows_missing = True

    has_known: bool = False
    """Whether targets come with a known quantity."""

    log_concave: ClassVar[bool] = True
    """Whether log p(y | f) is concave in f; otherwise it has one peak."""

    cdf_support: ClassVar[Literal["counts", "reals"] | None] = None
    """What `cdf_each` is a distribution function over; None: there is none."""

    def check_known(self, known: Tensor | None) -> None:
        """Raise unless known quantities of targets to predict are valid."""

    @abstractmethod
    def log_prob_each(self, y: Tensor, f: Tensor, known: Tensor | None) -> Tensor:
        """log p(y_c | f_c), elementwise over broadcast arguments; y is never NaN."""

    @abstractmethod
    def residual_each(self, y: Tensor, f: Tensor, known: Tensor | None) -> Tensor:
        """d/df_c log p(y_c | f_c), elementwise."""

    @abstractmethod
    def root_each(self, y: Tensor, f: Tensor, known: Tensor | None) -> Tensor:
        """The square root of Λ_c >= 0, elementwise, in a form that doesn't over- or underflow."""

    def cdf_each(self, y: Tensor, f: Tensor, known: Tensor | None) -> Tensor:
        """P(y_c <= y | f_c), elementwise, for y in the support; nothing is differentiated."""
        raise AttributeError(f"cdf_each: {type(self).__name__} has no distribution function")

    def exact_moments(
        self, mean: Tensor, variance: Tensor, known: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """E y, Var E[y | f] and E Var[y | f] under f_c ~ N(mean_c, variance_c), (N x M) each.

        None where there is no closed form: quadrature then.
        """
        return None

    def split_known(self, y: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Values without NaN, their known quantities and where values were observed, (N x C)."""
        known = None
        if self.has_known:
            y, known = y.unbind(-1)
            known = torch.where(known.isnan(), 1.0, known)
        values, observed = split_missing(y, self.filler)
        return values, known, observed

    filler: ClassVar[float] = 0.0
    """A valid target, put where targets are missing."""

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self.log_prob_terms(y, f).sum(-1)

    def log_prob_terms(self, y: Tensor, f: Tensor) -> Tensor:
        values, known, observed = self.split_known(y)
        return observed * self.log_prob_each(values, f, known)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        values, known, observed = self.split_known(y)
        return observed * self.residual_each(values, f, known)

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        values, known, observed = self.split_known(y)
        return DiagonalRoot(observed * self.root_each(values, f, known))

    def predictive(
        self,
        mean: Tensor,
        covariance: Tensor,
        method: str | None = None,
        *,
        known: Tensor | None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Predictive:
        self.check_known(known)
        if self.check_method(method) == "quadrature":
            return ElementwisePredictive(self, mean, covariance, known)
        normal = random_normal(num_samples, mean, generator)
        return AffineMixture(self, mean, covariance, normal, known)
