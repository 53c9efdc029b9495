"""Kernels whose matrices are solved by dense Cholesky at every size, in predictions too."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from gpytorch import settings
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel
from gpytorch.lazy import LazyEvaluatedKernelTensor
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from linear_operator import to_dense
from linear_operator.operators import LinearOperator, MatmulLinearOperator, to_linear_operator
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from lingp.operators.exact import as_exact


class CholeskyPredictionStrategy(DefaultPredictionStrategy):
    """GPyTorch's default strategy with one Cholesky factorisation of K + noise, kept between calls.

    The default turns to conjugate gradients past 800 rows, and starts anew for every call.
    """

    def __init__(
        self,
        train_inputs: Any,
        train_prior_dist: Any,
        train_labels: Tensor,
        likelihood: Any,
        root: Any = None,
        inv_root: Any = None,
    ) -> None:
        with _no_iteration():
            super().__init__(
                train_inputs, train_prior_dist, train_labels, likelihood, root, inv_root
            )
        if root is None and inv_root is None:  # else: the roots of a fantasy model are kept on it
            self.lik_train_train_covar: LinearOperator = as_exact(self.lik_train_train_covar)
        self._detached: LinearOperator | None = None

    def _mean_cache(self, nan_policy: str) -> Tensor:
        with _no_iteration():
            return super()._mean_cache(nan_policy)

    def exact_predictive_covar(
        self, test_test_covar: Tensor | LinearOperator, test_train_covar: Tensor | LinearOperator
    ) -> LinearOperator:
        """K** − K*x (Kxx + noise)⁻¹ Kx*."""
        if settings.skip_posterior_variances.on() or settings.fast_pred_var.on():
            with _no_iteration():
                return super().exact_predictive_covar(test_test_covar, test_train_covar)
        cross = to_dense(test_train_covar)  # (..., N*, N)
        solved = self._noisy_train_covar().solve(cross.mT)
        if torch.is_tensor(test_test_covar):
            return to_linear_operator(test_test_covar - cross @ solved)
        return as_exact(test_test_covar) + MatmulLinearOperator(cross, solved.mul(-1))

    def _noisy_train_covar(self) -> LinearOperator:
        if settings.detach_test_caches.on():
            if self._detached is None:
                self._detached = as_exact(self.lik_train_train_covar).detach()
            return self._detached
        return as_exact(
            self.likelihood(self.train_prior_dist, self.train_inputs).lazy_covariance_matrix
        )


class SolvedExactly(Kernel):
    """Base of kernels whose predictions, sums and products never fall to iterative solvers."""

    def prediction_strategy(
        self, train_inputs: Any, train_prior_dist: Any, train_labels: Tensor, likelihood: Any
    ) -> CholeskyPredictionStrategy:
        return CholeskyPredictionStrategy(train_inputs, train_prior_dist, train_labels, likelihood)

    def __add__(self, other: Kernel) -> Kernel:
        return ExactKernel(AdditiveKernel(*_terms(self, AdditiveKernel), other))

    def __mul__(self, other: Kernel) -> Kernel:
        return ExactKernel(ProductKernel(*_terms(self, ProductKernel), other))


class ExactKernel(SolvedExactly):
    """Any GPyTorch kernel, solved by dense Cholesky at every size.

    GPyTorch turns to conjugate gradients past 800 rows, which are far off on the spectra of neural
    tangent kernels. An `NTKernel`, a `ScaleKernel` of one, and `ntk + other` or `ntk * other` are
    exact as they are. Python asks the left operand: what begins with another has to be wrapped:

        ExactKernel(RBFKernel() + ntk)        ExactKernel(ScaleKernel(ntk) + RBFKernel())
    """

    def __init__(self, base_kernel: Kernel) -> None:
        super().__init__()
        self.base_kernel = base_kernel

    @property
    def is_stationary(self) -> bool:
        return bool(self.base_kernel.is_stationary)

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> Any:
        return self.base_kernel.num_outputs_per_input(x1, x2)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Any:
        result = self.base_kernel(x1, x2, diag=diag, **params)
        if diag or not isinstance(result, LinearOperator):
            return result
        return as_exact(result) if result.shape[-1] == result.shape[-2] else result

    def __getitem__(self, index: Any) -> ExactKernel:
        return ExactKernel(self.base_kernel[index])


def warn_if_solved_iteratively(rows: int) -> None:
    """Warn when a kernel of ours is a term of one that GPyTorch would solve by conjugate gradients.

    A kernel is not told what it is a part of, so the kernels that are calling are looked up.
    """
    if rows <= settings.max_cholesky_size.value() or settings.fast_computations.solves.off():
        return
    term_of = None
    frame = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, (ExactKernel, LazyEvaluatedKernelTensor)):
            break
        term_of = owner if isinstance(owner, (AdditiveKernel, ProductKernel)) else term_of
        frame = frame.f_back  # type: ignore[assignment]
    if term_of is None or isinstance(owner, ExactKernel):
        return
    warnings.warn(
        f"a {type(term_of).__name__} with an NTKernel in it has {rows} rows: GPyTorch solves it by "
        "conjugate gradients, which are far off on such kernels. Wrap the whole kernel: "
        "lingp.gpytorch_models.ExactKernel(kernel)",
        NumericalWarning,
        stacklevel=3,
    )


def _terms(kernel: Kernel, composite: type[Kernel]) -> list[Kernel]:
    inner = kernel.base_kernel if isinstance(kernel, ExactKernel) else kernel
    return list(inner.kernels) if isinstance(inner, composite) else [kernel]


def _no_iteration() -> Any:
    """Cholesky in whatever linear_operator itself has to solve."""
    return settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False)
