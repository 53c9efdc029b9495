"""What inference needs to know of a likelihood."""

from __future__ import annotations

from abc import ABC, abstractmethod

import gpytorch
import torch
from torch import Tensor

from lingp.likelihoods.predictive import Predictive
from lingp.likelihoods.roots import CurvatureRoot


class Likelihood(gpytorch.Module, ABC):
    """p(y | f) for one datum with C latent outputs f, independent over data.

    residual        r = ∇_f log p(y | f)                                  (N x C)
    curvature root  R Rᵀ = Λ = -∇²_f log p(y | f), or its GGN form (N x C x K)

    Latent outputs are always flat, `f` (N x C); `check_targets` brings targets into the form that
    the other methods take. Every method is differentiable in the hyperparameters.
    """

    @abstractmethod
    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Targets in the form the other methods take, or an error that says what is wrong.

        Parameters
        ----------
        y
            Targets as the user gave them, first axis the data.
        output_shape
            Shape of the network's output for one datum.
        dtype
            The dtype of the latent outputs.
        """

    @abstractmethod
    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y_n | f_n) for each datum, (N,)."""

    @abstractmethod
    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        """r = ∇_f log p(y | f), (N x C)."""

    @abstractmethod
    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        """R with R Rᵀ = Λ at f."""

    @abstractmethod
    def whitened_residual(self, y: Tensor, f: Tensor) -> Tensor:
        """z with R z = r, (N x K): for a Gaussian, the residual in noise standard deviations."""

    @abstractmethod
    def predictive(self, mean: Tensor, covariance: Tensor) -> Predictive:
        """p(y) = E p(y | f) under f_n ~ N(mean_n, covariance_n).

        Parameters
        ----------
        mean
            (N x C).
        covariance
            (N x C x C).
        """


def flatten_targets(y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Targets of exactly the outputs' shape, as (N x C) in `dtype`.

    (N,) and (N, 1) stand for each other; nothing is ever broadcast.
    """
    if y.dim() == 0:
        raise ValueError("y: expected one target per row of X, got a single number")
    shape = tuple(y.shape[1:])
    if shape != output_shape and {shape, output_shape} != {(), (1,)}:
        raise ValueError(
            f"y: has shape {_with_rows(shape)}, but the network's output has shape "
            f"{_with_rows(output_shape)}; give targets of the output's shape"
        )
    if y.is_complex():
        raise TypeError(f"y: expected real targets, got {y.dtype}")
    return y.reshape(y.shape[0], -1).to(dtype)


def _with_rows(shape: tuple[int, ...]) -> str:
    return f"(N, {', '.join(map(str, shape))})" if shape else "(N,)"
