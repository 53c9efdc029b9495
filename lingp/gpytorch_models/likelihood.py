"""Our likelihoods as GPyTorch likelihoods, for ApproximateGP models and their objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import LinearOperator, MatmulLinearOperator, SumLinearOperator
from torch import Tensor
from torch.distributions import Distribution

from lingp.likelihoods.base import Likelihood
from lingp.likelihoods.expectations import expected_log_prob
from lingp.likelihoods.predictives.base import Predictive
from lingp.operators import NTKLinearOperator


class GPyTorchLikelihood(gpytorch.likelihoods.Likelihood):
    """A lingp likelihood behind GPyTorch's interface; made by `to_gpytorch`.

    Every expectation is over the joint normal of the C outputs of a datum, where GPyTorch's own
    Monte Carlo keeps their variances only:

        expected_log_prob   E log p(y_n | f_n): in closed form for Gaussian noise, adaptive
                            quadrature where targets depend on one output each, otherwise
                            quasi-Monte-Carlo with scrambled Sobol nodes
        log_marginal        log E p(y_n | f_n), by the likelihood's default predictive

    Parameters
    ----------
    likelihood
        Its hyperparameters become parameters of this module.
    num_outputs
        C, if latent samples given to `forward` end with an axis of outputs; None: they don't.
    num_nodes
        Sobol nodes for quasi-Monte-Carlo.
    """

    has_analytic_marginal = False

    def __init__(
        self, likelihood: Likelihood, *, num_outputs: int | None = None, num_nodes: int = 256
    ) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.num_outputs = num_outputs
        self.num_nodes = num_nodes

    def expected_log_prob(
        self, observations: Tensor, function_dist: MultivariateNormal, *args: Any, **kwargs: Any
    ) -> Tensor:
        """E log p(y_n | f_n) for each datum, (... x N)."""
        site = _Sites(self.likelihood, function_dist)
        y = site.targets(observations)
        values = expected_log_prob(
            self.likelihood, y, site.mean, site.covariance, num_nodes=self.num_nodes
        )
        return values.reshape(site.batch_shape)

    def log_marginal(
        self, observations: Tensor, function_dist: MultivariateNormal, *args: Any, **kwargs: Any
    ) -> Tensor:
        """log E p(y_n | f_n) for each datum, (... x N)."""
        return self.marginal(function_dist).log_prob(observations)

    def marginal(
        self,
        function_dist: MultivariateNormal,
        *args: Any,
        known: Tensor | None = None,
        **kwargs: Any,
    ) -> PredictedTargets:
        """p(y_n) for each datum; `known` as for `Likelihood.at`, (... x N x T)."""
        site = _Sites(self.likelihood, function_dist)
        if known is not None:
            known = known.expand(*site.batch_shape, -1).reshape(len(site.mean), -1)
        predictive = self.likelihood.at(known).predictive(site.mean, site.covariance)
        return PredictedTargets(predictive, site)

    def forward(
        self, function_samples: Tensor, *args: Any, known: Tensor | None = None, **kwargs: Any
    ) -> ConditionalTargets:
        """p(y | f) for latent samples (... x N), or (... x N x C) with `num_outputs` given."""
        shape: tuple[int, ...] = () if self.num_outputs is None else (self.num_outputs,)
        if shape and function_samples.shape[-1:] != shape:
            raise ValueError(
                f"function_samples: expected (... x N x {self.num_outputs}), got "
                f"{tuple(function_samples.shape)}"
            )
        f = function_samples if shape else function_samples.unsqueeze(-1)
        return ConditionalTargets(self.likelihood.at(known), f, shape)


def to_gpytorch(
    likelihood: Likelihood, *, num_outputs: int | None = None, num_nodes: int = 256
) -> GPyTorchLikelihood:
    """A GPyTorch likelihood that behaves as `likelihood`.

    For `gpytorch.models.ApproximateGP` trained with `VariationalELBO` or `PredictiveLogLikelihood`:
    a `MultivariateNormal` of f is one output, a `MultitaskMultivariateNormal` C outputs. Targets
    have the shape that `LinearizedGP` takes.

    Parameters
    ----------
    likelihood
        From lingp.likelihoods.
    num_outputs
        C, needed only where the result is called on latent samples (... x N x C).
    num_nodes
        Sobol nodes for the expected log probability of likelihoods that couple outputs.
    """
    if not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"likelihood: expected an object from lingp.likelihoods, got "
            f"{type(likelihood).__name__}"
        )
    return GPyTorchLikelihood(likelihood, num_outputs=num_outputs, num_nodes=num_nodes)


class _Sites:
    """Moments of the outputs at each datum, batch dimensions flattened into the data."""

    def __init__(self, likelihood: Likelihood, dist: MultivariateNormal) -> None:
        self.likelihood = likelihood
        mean = dist.mean  # (..., N) or (..., N, C)
        self.output_shape: tuple[int, ...] = ()
        if isinstance(dist, MultitaskMultivariateNormal):
            self.output_shape = (mean.shape[-1],)
            covariance = _output_covariance(dist)
        else:
            mean, covariance = mean.unsqueeze(-1), dist.variance[..., None, None]
        self.batch_shape = mean.shape[:-1]  # (..., N)
        self.mean = mean.reshape(-1, mean.shape[-1])
        self.covariance = covariance.reshape(-1, *covariance.shape[-2:])

    def targets(self, y: Tensor) -> Tensor:
        """Checked targets, repeated over the batch dimensions of f where they have none."""
        if len(self.batch_shape) > 1:
            num_axes = 1 + len(self.likelihood.target_shape(self.output_shape))
            y = y.expand(*self.batch_shape[:-1], *y.shape[-num_axes:])
            y = y.reshape(-1, *y.shape[y.dim() - num_axes + 1 :])
        if len(y) != len(self.mean):
            raise ValueError(
                f"observations: f has {len(self.mean)} rows, the targets {len(y)}; give one "
                "target for each"
            )
        return self.likelihood.check_targets(y, self.output_shape, self.mean.dtype)


def _output_covariance(dist: MultitaskMultivariateNormal) -> Tensor:
    """Covariance of the C outputs of each datum, (... x N x C x C)."""
    num_data, num_outputs = dist.event_shape
    if dist._interleaved:
        return output_blocks(dist.lazy_covariance_matrix, num_outputs)
    grid = dist.covariance_matrix.unflatten(-1, (-1, num_data)).unflatten(-3, (-1, num_data))
    return grid.diagonal(dim1=-3, dim2=-1).movedim(-1, -3)


def output_blocks(covariance: LinearOperator, num_outputs: int) -> Tensor:
    """The C x C blocks on the diagonal, (... x N x C x C), rows `n·C + c`.

    The matrix is formed for kinds of operators only that aren't kernels, products, or sums of them.

    Parameters
    ----------
    covariance
        (... x N·C x N·C).
    num_outputs
        C.
    """
    covariance = covariance.evaluate_kernel()
    rows = (covariance.shape[-1] // num_outputs, num_outputs)
    if isinstance(covariance, NTKLinearOperator):
        return covariance.diagonal_blocks()
    if isinstance(covariance, SumLinearOperator):
        first, *others = (output_blocks(part, num_outputs) for part in covariance.linear_ops)
        return sum(others, start=first)
    if isinstance(covariance, MatmulLinearOperator):
        left = covariance.left_linear_op.to_dense().unflatten(-2, rows)
        right = covariance.right_linear_op.to_dense().mT.unflatten(-2, rows)
        return left @ right.mT
    grid = covariance.to_dense().unflatten(-1, rows).unflatten(-3, rows)  # (..., N, C, N, C)
    return grid.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


class _Targets(Distribution):
    """A distribution over the targets of each datum.

    Moments are (... x N x M), M as the likelihood's `moment_shape` has it; draws have the
    targets' shape.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012

    def __init__(
        self, likelihood: Likelihood, output_shape: tuple[int, ...], batch_shape: torch.Size
    ) -> None:
        self.likelihood, self.output_shape = likelihood, output_shape
        shape = torch.Size(likelihood.target_shape(output_shape))
        super().__init__(batch_shape, shape, validate_args=False)

    def _moment(self, values: Tensor) -> Tensor:
        return values.reshape(*self.batch_shape, *self.likelihood.moment_shape(self.output_shape))

    def _draws(self, draws: Tensor, sample_shape: Sequence[int]) -> Tensor:
        shape = tuple(self.event_shape)
        # a known quantity beside each target is no part of a draw
        shape = shape if math.prod(shape) == draws.shape[-1] else shape[:-1]
        return draws.reshape(*sample_shape, *self.batch_shape, *shape)


class PredictedTargets(_Targets):
    """p(y_n) as a torch distribution; `predictive` has intervals, class probabilities and more."""

    def __init__(self, predictive: Predictive, sites: _Sites) -> None:
        super().__init__(sites.likelihood, sites.output_shape, sites.batch_shape)
        self.predictive, self._sites = predictive, sites

    @property
    def mean(self) -> Tensor:
        return self._moment(self.predictive.mean)

    @property
    def variance(self) -> Tensor:
        return self._moment(self.predictive.variance)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(y_n), jointly over the targets of a datum, (... x N)."""
        return self.predictive.log_prob(self._sites.targets(value)).reshape(self.batch_shape)

    def sample(
        self,
        sample_shape: torch.Size | list[int] | tuple[int, ...] = (),
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws of y, independent over data."""
        draws = self.predictive.sample(math.prod(sample_shape), generator)
        return self._draws(draws, sample_shape)


class ConditionalTargets(_Targets):
    """p(y | f) for latent samples f (... x N x C), as a torch distribution."""

    def __init__(
        self,
        likelihood: Likelihood,
        f: Tensor,
        output_shape: tuple[int, ...],
    ) -> None:
        super().__init__(likelihood, output_shape, f.shape[:-1])
        self.f = f

    @property
    def mean(self) -> Tensor:
        return self._moment(self.likelihood.conditional_mean(self.f))

    @property
    def variance(self) -> Tensor:
        return self._moment(self.likelihood.conditional_variance(self.f))

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(y_n | f_n) for targets y (N x ...) at every sample, (... x N)."""
        y = self.likelihood.check_targets(value, self.output_shape, self.f.dtype)
        return self.likelihood.log_prob(y, self.f)

    def sample(
        self,
        sample_shape: torch.Size | list[int] | tuple[int, ...] = (),
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws of y for every sample of f."""
        f = self.f.expand(*sample_shape, *self.f.shape)
        return self._draws(self.likelihood.sample(f, generator=generator), sample_shape)
