"""Stochastic variational inference for a linearised network, in GPyTorch's terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, _VariationalDistribution
from torch import Tensor, nn

from lingp.gpytorch_models.means import NetworkMean
from lingp.gpytorch_models.ntkernel import NTKernel
from lingp.gpytorch_models.whitened_strategy import WhitenedStrategy


class LinearizedSVGP(ApproximateGP):
    """A linearised network with inducing points that are trained in minibatches.

    f ~ GP(m(x), J(x) Σ0 J(x')ᵀ), with m(x) = f(x; θ*) unless `mean` says otherwise, and a normal
    q(u) of the values at M inducing inputs, all C outputs each. Train it as any
    `gpytorch.models.ApproximateGP`, with `VariationalELBO` or `PredictiveLogLikelihood`; the
    likelihood is GPyTorch's or one of ours through `to_gpytorch`. Calling it
    gives q(f): a `MultivariateNormal` (N), or for C > 1 a `MultitaskMultivariateNormal` (N x C),
    interleaved.

    Trained are q(u), the prior's hyperparameters, and the inducing inputs; never the network.

    Parameters
    ----------
    network : torch.nn.Module or NTKernel
        A network becomes `NTKernel.from_model(network).double()`: a copy in float64, all weights,
        prior precision 1. Make the kernel yourself for anything else.
    inducing_points : (M x D) tensor
        Where to start, such as some of the training inputs. Converted to the kernel's dtype.
    variational_distribution : callable, optional
        Makes q(u) from its size M·C: a class from `gpytorch.variational`. Use
        `NaturalVariationalDistribution` with `gpytorch.optim.NGD`.
    learn_inducing_locations : bool, optional
        Whether the inducing inputs are parameters. The network's inputs must be continuous.
    mean : callable, optional
        Makes the mean function from the kernel: `NetworkMean`, for a prior around the trained
        weights, or `PriorMean`, for the kernel's own. The network has seen the data:
        under `NetworkMean` the bound is no guide to the prior's precision, which it drives up.

    Raises
    ------
    TypeError
        If `network` is another kernel.
    ValueError
        If `inducing_points` isn't M x D, or is to be learned for inputs that aren't continuous.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    >>> model = lingp.gpytorch_models.LinearizedSVGP(net, torch.randn(5, 2))
    >>> model(torch.randn(7, 2)).event_shape
    torch.Size([7, 3])
    """

    def __init__(
        self,
        network: nn.Module,
        inducing_points: Tensor,
        *,
        variational_distribution: Callable[
            [int], _VariationalDistribution
        ] = CholeskyVariationalDistribution,
        learn_inducing_locations: bool = True,
        mean: Callable[[NTKernel], Mean] = NetworkMean,
    ) -> None:
        kernel = _as_kernel(network)
        _check_points(inducing_points, kernel, learn_inducing_locations)
        points = inducing_points.detach().to(dtype=kernel.dtype, device=kernel.device)
        size = len(points) * kernel.num_outputs_per_input(points, points)
        distribution = variational_distribution(size)
        super().__init__(
            WhitenedStrategy(
                self,
                points,
                distribution.to(dtype=kernel.dtype, device=kernel.device),
                learn_inducing_locations=learn_inducing_locations,
            )
        )
        self.covar_module = kernel
        self.mean_module = mean(kernel)

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior at x (... x N x D)."""
        mean, covariance = self.mean_module(x), self.covar_module(x)
        several = covariance.shape[-1] > x.shape[-2]
        return (MultitaskMultivariateNormal if several else MultivariateNormal)(mean, covariance)

    def __call__(self, inputs: Tensor, prior: bool = False, **kwargs: Any) -> MultivariateNormal:
        """q(f) at inputs (... x N x D), or the prior there; in the kernel's dtype."""
        return super().__call__(inputs.to(self.covar_module.dtype), prior=prior, **kwargs)


def _as_kernel(network: nn.Module) -> NTKernel:
    if isinstance(network, NTKernel):
        return network
    if isinstance(network, Kernel):
        raise TypeError(
            f"network: got a {type(network).__name__}; expected a network or its NTKernel. Other "
            "kernels go into a gpytorch.models.ApproximateGP with "
            "lingp.gpytorch_models.WhitenedStrategy"
        )
    return NTKernel.from_model(network).double()


def _check_points(points: Tensor, kernel: NTKernel, learned: bool) -> None:
    if points.dim() != 2:
        raise ValueError(
            f"inducing_points: got shape {tuple(points.shape)}; expected (M x D). Flatten inputs "
            "of more dimensions, x.flatten(1), and tell the kernel their shape: "
            "NTKernel.from_model(net, input_shape=...)"
        )
    discrete = kernel.network.input_dtype
    if learned and discrete is not None and not discrete.is_floating_point:
        raise ValueError(
            f"learn_inducing_locations: got True; the network's inputs are {discrete}, along which "
            "there is no gradient. Use learn_inducing_locations=False"
        )
