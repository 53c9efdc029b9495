"""p(y | f): what inference and predictives ask of a likelihood."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Self

from lingp.likelihoods.roots import CurvatureRoot, DiagonalRoot
from lingp.likelihoods.targets import check_values, split_missing


class Conditional(ABC):
    """p(y | f) of each datum; see `Likelihood`."""

    is_quadratic: ClassVar[bool] = False
    """Whether log p(y | f) is quadratic in f: one linear solve is the posterior mean then."""

    has_order: ClassVar[bool] = True
    """Whether targets have an order, as numbers have: the labels of a softmax have none."""

    has_known: bool = False
    """Whether every target has a known quantity: noise variance, number of trials, exposure."""

    known: Tensor | None = None
    """The known quantity of each target, (N x T), where `at` has said it."""

    def at(self, known: Tensor | None) -> Self:
        """The likelihood of targets with this known quantity, sharing all hyperparameters.

        Moments, draws and predictives are of such targets. Without it the known quantity counts as
        none (noise) or one (trials, exposure).

        Parameters
        ----------
        known
            The known quantity of each target, (N x T); None changes nothing.

        Raises
        ------
        ValueError
            If targets have no known quantity, or if it is invalid.
        """
        if known is None:
            return self
        if not self.has_known:
            raise ValueError(f"known: {type(self).__name__} has no known quantity of its targets")
        self.check_known(known)
        return self._at(known)

    def check_known(
        self, known: Tensor, name: str = "known", *, missing: Tensor | None = None
    ) -> None:
        """Raise unless known quantities are valid; see `check_values`."""
        check_values(known, known.isfinite(), "finite numbers", name, missing=missing)

    def _at(self, known: Tensor | None) -> Self:
        """`at`, without checks."""
        if known is None:
            return self
        view = copy.copy(self)
        view.known = known
        return view

    def rows(self, index: slice | Tensor) -> Self:
        """The likelihood of some rows, where known quantities differ between rows."""
        return self if self.known is None else self._at(self.known[index])

    def num_labels(self, output_shape: tuple[int, ...]) -> int | None:
        """K where a datum's target is one class label 0 .. K-1, else None."""
        return None

    @abstractmethod
    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y_n | f_n) for each datum, (... x N)."""

    def log_prob_terms(self, y: Tensor, f: Tensor) -> Tensor | None:
        """`log_prob` as a sum of one term for each f_c, (... x N x C); None where it isn't one."""
        return None

    @abstractmethod
    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        """r = ∇_f log p(y | f), (... x N x C)."""

    def whitened_residual(self, y: Tensor, f: Tensor) -> Tensor:
        """z with R z = r, (N x K), where `is_quadratic`: the residual in noise deviations."""
        raise AttributeError(f"whitened_residual: {type(self).__name__} isn't quadratic in f")

    @abstractmethod
    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        """R with R Rᵀ = Λ at f (N x C)."""

    def average_curvature(self, y: Tensor, f: Tensor) -> Tensor:
        """The mean of Λ over nodes f (S x N x C), (N x C x C)."""
        total = f.new_zeros(*f.shape[1:], f.shape[-1])
        for node in f:
            root = self.curvature_root(y, node).dense()
            total += root @ root.mT
        return total / len(f)

    @abstractmethod
    def conditional_mean(self, f: Tensor) -> Tensor:
        """E[y | f], (... x N x M)."""

    @abstractmethod
    def conditional_variance(self, f: Tensor) -> Tensor:
        """Var[y | f], (... x N x M)."""

    @abstractmethod
    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """One draw of y given each f, (... x N x T)."""


class ElementwiseConditional(Conditional):
    """log p(y | f) = Σ_c log p(y_c | f_c): R is diagonal, T = C.

    Subclasses write scalar functions, which find known quantities in `known`; missing targets are
    handled here.
    """

    log_concave: ClassVar[bool] = True
    """Whether log p(y | f) is concave in f; otherwise it has one peak."""

    cdf_support: ClassVar[Literal["counts", "reals"] | None] = None
    """What `cdf_each` is a distribution function over; None: there is none."""

    filler: ClassVar[float] = 0.0
    """A valid target, put where targets are missing."""

    @abstractmethod
    def log_prob_each(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y_c | f_c), elementwise over broadcast arguments; y is never NaN."""

    @abstractmethod
    def residual_each(self, y: Tensor, f: Tensor) -> Tensor:
        """d/df_c log p(y_c | f_c), elementwise."""

    @abstractmethod
    def root_each(self, y: Tensor, f: Tensor) -> Tensor:
        """The square root of Λ_c >= 0, elementwise, in a form that doesn't over- or underflow."""

    def cdf_each(self, y: Tensor, f: Tensor) -> Tensor:
        """P(y_c <= y | f_c), elementwise, for y in the support; nothing is differentiated."""
        raise AttributeError(f"cdf_each: {type(self).__name__} has no distribution function")

    def exact_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """E y, Var E[y | f] and E Var[y | f] under f_c ~ N(mean_c, variance_c), (N x M) each.

        None where there is no closed form: quadrature then.
        """
        return None

    def split_known(self, y: Tensor) -> tuple[Self, Tensor, Tensor]:
        """The likelihood at y's known quantities, values without NaN, and which were observed."""
        here = self
        if self.has_known:
            y, known = y.unbind(-1)
            here = self._at(torch.where(known.isnan(), 1.0, known))
        values, observed = split_missing(y, self.filler)
        return here, values, observed

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self.log_prob_terms(y, f).sum(-1)

    def log_prob_terms(self, y: Tensor, f: Tensor) -> Tensor:
        here, values, observed = self.split_known(y)
        return observed * here.log_prob_each(values, f)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        here, values, observed = self.split_known(y)
        return observed * here.residual_each(values, f)

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        here, values, observed = self.split_known(y)
        return DiagonalRoot(observed * here.root_each(values, f))
