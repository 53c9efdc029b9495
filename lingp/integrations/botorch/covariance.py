"""Covariances that can be sampled from with gradients, whatever their rank."""

from __future__ import annotations

from linear_operator.operators import DenseLinearOperator, LinearOperator, RootLinearOperator

from lingp.linalg.psd import lower_root
from lingp.models.covariance import PosteriorCovariance


class SampledCovariance(PosteriorCovariance):
    """A dense PSD matrix S (*batch, n, n), of any rank, whose root has finite derivatives.

    The root of a singular matrix has none: it is that of S + ε I, with the least ε, from rounding
    upwards, for which S + ε I has a Cholesky factor.
    """

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        return RootLinearOperator(DenseLinearOperator(lower_root(self.to_dense())))
