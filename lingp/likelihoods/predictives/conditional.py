"""What predictives need to know of p(y | f); every likelihood gives it."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from lingp.likelihoods.roots import CurvatureRoot


class Conditional(Protocol):
    """p(y | f) of each datum, see `Likelihood`."""

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y_n | f_n), (... x N)."""
        ...

    def log_prob_terms(self, y: Tensor, f: Tensor) -> Tensor | None:
        """`log_prob` as a sum of one term for each f_c, or None."""
        ...

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        """∇_f log p(y | f), (... x N x C)."""
        ...

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        """R with R Rᵀ = Λ at f (N x C)."""
        ...

    def conditional_mean(self, f: Tensor, known: Tensor | None = None) -> Tensor:
        """E[y | f], (... x N x M)."""
        ...

    def conditional_variance(self, f: Tensor, known: Tensor | None = None) -> Tensor:
        """Var[y | f], (... x N x M)."""
        ...

    def sample(
        self,
        f: Tensor,
        known: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """One draw of y given each f, (... x N x T)."""
        ...


class ElementwiseConditional(Conditional, Protocol):
    """p(y | f) = Π_c p(y_c | f_c), see `ElementwiseLikelihood`."""

    @property
    def log_concave(self) -> bool:
        """Whether log p(y | f) is concave in f."""
        ...

    @property
    def cdf_support(self) -> Literal["counts", "reals"] | None:
        """What `cdf_each` is a distribution function over."""
        ...

    def num_labels(self, output_shape: tuple[int, ...]) -> int | None:
        """K where a datum's target is one class label, else None."""
        ...

    def log_prob_each(self, y: Tensor, f: Tensor, known: Tensor | None) -> Tensor:
        """log p(y_c | f_c), elementwise."""
        ...

    def residual_each(self, y: Tensor, f: Tensor, known: Tensor | None) -> Tensor:
        """d/df_c log p(y_c | f_c), elementwise."""
        ...

    def root_each(self, y: Tensor, f: Tensor, known: Tensor | None) -> Tensor:
        """The square root of Λ_c, elementwise."""
        ...

    def cdf_each(self, y: Tensor, f: Tensor, known: Tensor | None) -> Tensor:
        """P(y_c <= y | f_c), elementwise."""
        ...

    def exact_moments(
        self, mean: Tensor, variance: Tensor, known: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """E y, Var E[y | f] and E Var[y | f] in closed form, or None."""
        ...

    def split_known(self, y: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Values without NaN, their known quantities and where values were observed."""
        ...


class PrecisionConditional(Conditional, Protocol):
    """Gaussian noise of variance 1 / g(f₂), see `Heteroscedastic`."""

    def precision(self, f2: Tensor) -> Tensor:
        """g(f₂), elementwise."""
        ...
