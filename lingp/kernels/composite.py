"""Sums and products of kernels that are solved by dense Cholesky at every size."""

from __future__ import annotations

from typing import Any

from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel
from linear_operator.operators import LinearOperator
from torch import Tensor

from lingp.kernels.prediction import CholeskyPredictionStrategy
from lingp.operators.exact import as_exact


class ExactKernel(Kernel):
    """A kernel whose predictions, sums and products never fall to iterative solvers.

    `NTKernel` is one, and so is any sum or product that begins with one. Python asks the left
    operand, so `RBFKernel() + ntk` is GPyTorch's own sum, with GPyTorch's solvers: conjugate
    gradients past 800 rows, which are far off on these spectra. Write `ntk + RBFKernel()`.
    """

    def prediction_strategy(
        self, train_inputs: Any, train_prior_dist: Any, train_labels: Tensor, likelihood: Any
    ) -> CholeskyPredictionStrategy:
        return CholeskyPredictionStrategy(train_inputs, train_prior_dist, train_labels, likelihood)

    def __add__(self, other: Kernel) -> Kernel:
        return ExactAdditiveKernel(*_terms(self, AdditiveKernel), *_terms(other, AdditiveKernel))

    def __mul__(self, other: Kernel) -> Kernel:
        return ExactProductKernel(*_terms(self, ProductKernel), *_terms(other, ProductKernel))


class ExactAdditiveKernel(ExactKernel, AdditiveKernel):
    """Σ_i K_i, solved by dense Cholesky at every size."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Any:
        return _exact(AdditiveKernel.forward(self, x1, x2, diag=diag, **params), diag)


class ExactProductKernel(ExactKernel, ProductKernel):
    """K_1 ∘ K_2 ∘ ..., solved by dense Cholesky at every size."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Any:
        return _exact(ProductKernel.forward(self, x1, x2, diag=diag, **params), diag)


def _terms(kernel: Kernel, composite: type[Kernel]) -> list[Kernel]:
    return list(kernel.kernels) if isinstance(kernel, composite) else [kernel]


def _exact(result: Any, diag: bool) -> Any:
    square = isinstance(result, LinearOperator) and result.shape[-1] == result.shape[-2]
    return as_exact(result) if square and not diag else result
