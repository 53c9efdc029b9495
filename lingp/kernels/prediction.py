"""Exact GP prediction by dense Cholesky, whatever the number of training points."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch import settings
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from linear_operator import to_dense
from linear_operator.operators import LinearOperator, MatmulLinearOperator, to_linear_operator
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


def _no_iteration() -> Any:
    """Cholesky in whatever linear_operator itself has to solve."""
    return settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False)
