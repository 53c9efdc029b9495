"""q(f) from a normal q of whitened inducing values, for any number of outputs."""

from __future__ import annotations

from typing import Any

from gpytorch.distributions import MultivariateNormal
from gpytorch.variational import VariationalStrategy
from linear_operator import to_dense
from linear_operator.operators import LinearOperator, TriangularLinearOperator
from torch import Tensor

from lingp.linalg.psd import lower_root
from lingp.operators.exact import ExactSumLinearOperator


class WhitenedStrategy(VariationalStrategy):
    """GPyTorch's `VariationalStrategy` for kernels of C outputs per input.

    With u = f(Z) = m(Z) + L v, L Lᵀ = K(Z, Z) and q(v) = N(a, S) over M·C values,

        q(f) = N(m(x) + Ψ a, K(x, x) + Ψ (S − I) Ψᵀ)             Ψ(x) = K(x, Z) L⁻ᵀ

    (Hensman et al. 2015, whitened as in Matthews 2017). The covariance is lazy: expectations over
    single data take its C x C blocks only, and no N x N matrix is formed for them.

    The model's `forward` is the prior; its `covar_module` must be the whole kernel. Inducing points
    are M x D, and there is no `get_fantasy_model`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # GPyTorch's pseudo-points are those of one output
        self.has_fantasy_strategy = False
        # GPyTorch would add noise from the global generator. Its distributions are made as
        # N(0, I), which is the prior of whitened values.
        self.variational_params_initialized.fill_(1)

    def forward(
        self,
        x: Tensor,
        inducing_points: Tensor,
        inducing_values: Tensor,
        variational_inducing_covar: LinearOperator | None = None,
        diag: bool = True,
        **kwargs: Any,
    ) -> MultivariateNormal:
        """q(f) at x (... x N x D).

        Overridden for three reasons. GPyTorch takes the first M rows of the joint prior for those
        of Z, where there are M·C. It asks for the prior of Z and x in one, so that derivatives for
        Z go through x too. And its jitter is absolute, on K(x, x) as well, whatever the kernel's
        scale.
        """
        prior = self.model.forward(x, **kwargs)
        kernel, points = self.model.covar_module, self.inducing_points
        mean, covariance = self._compute_predictive_updates(
            chol=TriangularLinearOperator(lower_root(to_dense(kernel(points)))),
            induc_data_covar=to_dense(kernel(points, x)),
            inducing_values=inducing_values,
            variational_inducing_covar=variational_inducing_covar,
            prior_covar=self.prior_distribution.lazy_covariance_matrix,
            diag=False,
        )
        total = ExactSumLinearOperator(prior.lazy_covariance_matrix.evaluate_kernel(), covariance)
        return type(prior)(prior.mean + mean.view(prior.mean.shape), total)

    def __call__(self, *args: Any, **kwargs: Any) -> MultivariateNormal:
        # GPyTorch keeps factors in eval mode, whatever becomes of the parameters
        self._clear_cache()
        return super().__call__(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # what training keeps has a graph, and such tensors can't be copied
        return {**self.__dict__, "_memoize_cache": {}}
