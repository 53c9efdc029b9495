"""Titsias' sparse GP regression for GPyTorch's ExactGP, for kernels of any number of outputs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from gpytorch import settings
from gpytorch.kernels import InducingPointKernel, Kernel
from gpytorch.lazy import LazyEvaluatedKernelTensor
from gpytorch.likelihoods import Likelihood
from gpytorch.likelihoods.multitask_gaussian_likelihood import _MultitaskGaussianLikelihoodBase
from gpytorch.mlls import AddedLossTerm
from gpytorch.models.exact_prediction_strategies import SGPRPredictionStrategy
from linear_operator import to_dense
from linear_operator.operators import (
    LinearOperator,
    LowRankRootLinearOperator,
    MatmulLinearOperator,
    ZeroLinearOperator,
)
from torch import Tensor

from lingp.linalg.psd import lower_root
from lingp.operators.exact import ExactSumLinearOperator, as_exact


class InducingPointNTKernel(InducingPointKernel):
    """Q(x, x') = K(x, Z) K(Z, Z)⁻¹ K(Z, x'), trained and predicted with as Titsias (2009) has it.

    In a `gpytorch.models.ExactGP`, `ExactMarginalLogLikelihood` becomes the variational bound

        log N(y | m, Q + D) − ½ tr D⁻¹(K − Q)                      D: the noise's variances

    and predictions are those of the optimal q(u), with Ψ(x) = K(x, Z) L⁻ᵀ, L Lᵀ = K(Z, Z) and
    A = I + Ψᵀ D⁻¹ Ψ over the training data,

        mean  m* + Ψ* A⁻¹ Ψᵀ D⁻¹ (y − m)         covariance  K** − Ψ* Ψ*ᵀ + Ψ* A⁻¹ Ψ*ᵀ

    The cost is linear in the number of data. The model's `forward` must return the kernel as it is;
    put a `ScaleKernel` inside. With C > 1 outputs the likelihood is a `MultitaskGaussianLikelihood`
    (rank 0), and Z stands for M·C inducing values. Work in float64: in float32 what K(Z, Z) has
    lost to rounding costs the bound and the predictions most of their digits.

    Parameters
    ----------
    base_kernel : NTKernel, or a kernel made from it
    inducing_points : (M x D) tensor
        Where training starts; they are a parameter, and
        `kernel.inducing_points.requires_grad_(False)` keeps them.
    likelihood : gpytorch.likelihoods.Likelihood
        The model's own: a Gaussian one whose noise is independent over rows and outputs.
    active_dims : optional
        As for `gpytorch.kernels.Kernel`.

    Raises
    ------
    ValueError
        If the likelihood's noise is correlated over outputs.
    """

    def __init__(
        self,
        base_kernel: Kernel,
        inducing_points: Tensor,
        likelihood: Likelihood,
        active_dims: tuple[int, ...] | None = None,
    ) -> None:
        if getattr(likelihood, "rank", 0):
            raise ValueError(
                f"likelihood: its noise has rank {likelihood.rank}, correlated over outputs; "
                "expected independent noise. Use MultitaskGaussianLikelihood(rank=0)"
            )
        # GPyTorch would train the very tensor it is given, such as rows of the data
        points = inducing_points.detach().clone()
        super().__init__(base_kernel, points, likelihood, active_dims)

    def projection(self, x: Tensor) -> Tensor:
        """Ψ(x) = K(x, Z) L⁻ᵀ, (... x N·C x M·C)."""
        points = self.inducing_points
        root = lower_root(to_dense(self.base_kernel(points)))
        cross = to_dense(self.base_kernel(points, x))
        return torch.linalg.solve_triangular(root, cross, upper=False).mT

    def noise_variances(self, x: Tensor) -> Tensor:
        """D, (... x N·C)."""
        shape = x.shape[:-1]
        if isinstance(self.likelihood, _MultitaskGaussianLikelihoodBase):
            shape = torch.Size([*shape, self.likelihood.num_tasks])
        f = torch.zeros(shape, dtype=x.dtype, device=x.device)
        return self.likelihood(f).variance.reshape(*x.shape[:-2], -1)

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, evaluate: bool = False, **params: Any
    ) -> Tensor | LinearOperator:
        """Q(x1, x2).

        Overridden because GPyTorch counts the trace term C times over, and in predictions adds
        diag(K − Q) to the training covariance, which is FITC and not what the bound was for.
        """
        if not (self.training or diag or evaluate):
            # an ExactGP evaluates kernels before its strategy sees them, which needs x* instead
            return LazyEvaluatedKernelTensor(x1, x2, kernel=self, evaluate=True)
        left = self.projection(x1)
        same = x1 is x2 or torch.equal(x1, x2)
        right = left if same else self.projection(x2)
        if self.training and same:
            gap = self.base_kernel(x1, diag=True) - left.square().sum(-1)
            self.update_added_loss_term("inducing_point_loss_term", TraceTerm(self, x1, gap))
        if diag:
            return (left * right).sum(-1)
        return LowRankRootLinearOperator(left) if same else MatmulLinearOperator(left, right.mT)

    def prediction_strategy(
        self, train_inputs: Any, train_prior_dist: Any, train_labels: Tensor, likelihood: Any
    ) -> TitsiasPredictionStrategy:
        return TitsiasPredictionStrategy(self, train_inputs, train_prior_dist, train_labels)

    def __deepcopy__(self, memo: dict[int, Any]) -> InducingPointNTKernel:
        # GPyTorch's copy stays with the original's likelihood, not with that of the copied model
        parts = (self.base_kernel, self.inducing_points, self.likelihood)
        base_kernel, points, likelihood = copy.deepcopy(parts, memo)
        twin = type(self)(base_kernel, points, likelihood, self.active_dims)
        twin.inducing_points.requires_grad_(points.requires_grad)
        return twin.train(self.training)


class TraceTerm(AddedLossTerm):
    """−½ tr D⁻¹(K − Q) (Titsias 2009, equation 9), from the diagonal of K − Q."""

    def __init__(self, kernel: InducingPointNTKernel, x: Tensor, gap: Tensor) -> None:
        self.kernel, self.x, self.gap = kernel, x, gap

    def loss(self, *params: Any) -> Tensor:
        return -0.5 * (self.gap / self.kernel.noise_variances(self.x)).sum(-1)


class TitsiasPredictionStrategy(SGPRPredictionStrategy):
    """Predictions of the optimal q(u); see `InducingPointNTKernel`.

    GPyTorch's own takes Q** for K**, but for the diagonal: by the time that it looks for the base
    kernel of a lazy covariance, the model has evaluated it.
    """

    def __init__(
        self,
        kernel: InducingPointNTKernel,
        train_inputs: Any,
        train_prior_dist: Any,
        train_labels: Tensor,
    ) -> None:
        self.kernel = kernel
        self._train_shape = train_prior_dist.event_shape
        residual = (train_labels - train_prior_dist.mean).flatten(-len(self._train_shape))
        with torch.set_grad_enabled(torch.is_grad_enabled() and settings.detach_test_caches.off()):
            scale = kernel.noise_variances(train_inputs[0]).sqrt().unsqueeze(-1)
            weighted = kernel.projection(train_inputs[0]) / scale  # D^{-1/2} Ψ
            identity = torch.eye(weighted.shape[-1], dtype=weighted.dtype, device=weighted.device)
            self._factor = torch.linalg.cholesky(identity + weighted.mT @ weighted)  # of A
            right = weighted.mT @ (residual.unsqueeze(-1) / scale)
            self._values = torch.cholesky_solve(right, self._factor)  # A⁻¹ Ψᵀ D⁻¹ (y − m)

    def exact_prediction(
        self,
        test_mean: Tensor,
        test_test_covar: Tensor | LinearOperator,
        test_train_covar: Tensor | LinearOperator,
    ) -> tuple[Tensor, LinearOperator]:
        covariance = test_test_covar
        if not isinstance(covariance, LazyEvaluatedKernelTensor) or covariance.kernel is not (
            self.kernel
        ):
            raise TypeError(
                f"the model's covariance is a {type(covariance).__name__}; expected what "
                "InducingPointNTKernel gives, unchanged. Wrap its base kernel instead"
            )
        x: Tensor = covariance.x1
        projection = self.kernel.projection(x)  # Ψ*
        mean = test_mean + (projection @ self._values).squeeze(-1)
        if settings.skip_posterior_variances.on():
            return mean, ZeroLinearOperator(*covariance.shape)
        solved = torch.cholesky_solve(projection.mT, self._factor)
        change = MatmulLinearOperator(projection, solved - projection.mT)  # Ψ* (A⁻¹ − I) Ψ*ᵀ
        return mean, ExactSumLinearOperator(as_exact(self.kernel.base_kernel(x)), change)
