"""What inference and predictions need to know of a likelihood."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import gpytorch
import torch
from gpytorch.constraints import Interval, Positive
from torch import Tensor

from lingp.likelihoods.predictives import Predictive
from lingp.likelihoods.roots import CurvatureRoot


class Likelihood(gpytorch.Module, ABC):
    """p(y | f) for one datum with C latent outputs f, independent over data.

        residual        r = ∇_f log p(y | f)                                  (N x C)
        curvature root  R Rᵀ = Λ = -∇²_f log p(y | f), or its GGN form        (N x C x K)

    Latent outputs are flat, f (... x N x C): leading dimensions are draws or quadrature nodes.
    `check_targets` brings targets into the form the other methods take, floating (N x T), or
    (N x T x 2) for a likelihood with a known quantity per target (noise variance, number of trials,
    exposure). NaN stands for a target that was not observed: it adds nothing to log_prob, and its
    residual and curvature are zero. Every method is differentiable in the hyperparameters.
    """

    methods: ClassVar[tuple[str, ...]]
    """The ways `predictive` can be computed; the first is the default."""

    allows_missing: ClassVar[bool] = False
    """Whether NaN targets are accepted, as not observed."""

    limits_fit: ClassVar[bool] = False
    """Whether log p(y | f) stops growing at some fit of y, as noise of a given size and counts make
    it: class labels and free variances reward ever surer outputs."""

    saturates: ClassVar[bool] = False
    """Whether Λ vanishes where the outputs are sure of the target: class labels."""

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

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of one datum's targets."""
        return output_shape

    def moment_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the predictive mean and variance of one datum."""
        return self.target_shape(output_shape)

    def num_labels(self, output_shape: tuple[int, ...]) -> int | None:
        """K where a datum's target is one class label 0 .. K-1, else None."""
        return None

    def label_probs(self, moments: Tensor) -> Tensor:
        """Probabilities of the classes of every label, (... x L x K), from means (... x M)."""
        raise AttributeError(f"label_probs: {type(self).__name__} is not of class labels")

    def with_scaled_mean(self, mean: Tensor, scale: float) -> tuple[Likelihood, Tensor]:
        """What gives p(y) = E p(y | s m + ε) in place of E p(y | m + ε), for class labels.

        Parameters
        ----------
        mean
            m, the mean of the latent outputs, (N x C).
        scale
            s: how sure a label is without ε; 1 changes nothing.

        Returns
        -------
        likelihood, mean
            Where p depends on f relative to something (cutpoints), that is scaled like the mean.
        """
        return self, mean if scale == 1 else scale * mean

    @abstractmethod
    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y_n | f_n) for each datum, (... x N)."""

    def log_prob_terms(self, y: Tensor, f: Tensor) -> Tensor | None:
        """`log_prob` as a sum of one term for each f_c, (... x N x C); None where it isn't one."""
        return None

    @abstractmethod
    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        """r = ∇_f log p(y | f), (... x N x C)."""

    @abstractmethod
    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        """R with R Rᵀ = Λ at f (N x C)."""

    def average_curvature(self, y: Tensor, f: Tensor) -> Tensor:
        """The mean of Λ over nodes f (S x N x C), (N x C x C)."""
        total = f.new_zeros(*f.shape[1:], f.shape[-1])
        for node in f:
            root = self.curvature_root(y, node).dense()
            total += root @ root.mT
        return total / len(f)

    @abstractmethod
    def conditional_mean(self, f: Tensor, known: Tensor | None = None) -> Tensor:
        """E[y | f], (... x N x M)."""

    @abstractmethod
    def conditional_variance(self, f: Tensor, known: Tensor | None = None) -> Tensor:
        """Var[y | f], (... x N x M)."""

    @abstractmethod
    def sample(
        self,
        f: Tensor,
        known: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """One draw of y given each f, (... x N x T)."""

    @abstractmethod
    def predictive(
        self,
        mean: Tensor,
        covariance: Tensor,
        method: str | None = None,
        *,
        known: Tensor | None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Predictive:
        """p(y) = E p(y | f) under f_n ~ N(mean_n, covariance_n).

        Parameters
        ----------
        mean
            (N x C).
        covariance
            (N x C x C).
        method
            One of `methods`; the first by default.
        known
            The known quantity of each target to predict, (N x T), for likelihoods that have one.
        num_samples, generator
            For methods that draw.
        """

    def check_method(self, method: str | None) -> str:
        """The predictive method to use, or an error that names the known ones."""
        if method is None:
            return self.methods[0]
        if method not in self.methods:
            names = ", ".join(repr(name) for name in self.methods)
            raise ValueError(f"method: {type(self).__name__} predicts by {names}, got {method!r}")
        return method

    def register_positive(
        self,
        name: str,
        value: float | Sequence[float] | Tensor,
        constraint: Interval | None = None,
        *,
        requires_grad: bool = True,
    ) -> None:
        """Make the hyperparameter `raw_<name>`, float64, positive through `exp` by default.

        Parameters
        ----------
        name
            A property that calls `positive(name)` and `set_positive(name, value)` goes with it.
        value
            Initial value: a number, or a 1-D sequence.
        constraint
            Another GPyTorch constraint.
        requires_grad
            Whether hyperparameter optimisation moves it.
        """
        initial = as_positive(name, value)
        constraint = constraint or Positive(transform=torch.exp, inv_transform=torch.log)
        parameter = torch.nn.Parameter(torch.zeros_like(initial), requires_grad=requires_grad)
        self.register_parameter(f"raw_{name}", parameter)
        self.register_constraint(f"raw_{name}", constraint)
        if constraint.initial_value is None:
            raw = constraint.inverse_transform(initial)
            if not bool(torch.isfinite(raw).all()):
                raise ValueError(f"{name}: {initial.tolist()} lies outside {constraint}")
            self.initialize(**{f"raw_{name}": raw})

    def positive(self, name: str) -> Tensor:
        """The value of a hyperparameter made by `register_positive`."""
        constraint = getattr(self, f"raw_{name}_constraint")
        value: Tensor = constraint.transform(getattr(self, f"raw_{name}"))
        return value

    def set_positive(self, name: str, value: float | Sequence[float] | Tensor) -> None:
        """Set a hyperparameter made by `register_positive`."""
        raw = getattr(self, f"raw_{name}")
        checked = as_positive(name, value).to(raw).expand_as(raw)
        constraint = getattr(self, f"raw_{name}_constraint")
        self.initialize(**{f"raw_{name}": constraint.inverse_transform(checked)})

    def check_per_output(self, name: str, num_outputs: int) -> None:
        """Raise unless a hyperparameter made by `register_positive` fits the number of outputs."""
        raw = getattr(self, f"raw_{name}")
        if raw.dim() == 1 and len(raw) != num_outputs:
            raise ValueError(
                f"{name}: has {len(raw)} values, but the network has {num_outputs} outputs; give "
                "one number, or one value per output"
            )


class QuadraticLikelihood(Likelihood):
    """A likelihood whose log p(y | f) is quadratic in f: one linear solve is the posterior mean."""

    limits_fit = True

    @abstractmethod
    def whitened_residual(self, y: Tensor, f: Tensor) -> Tensor:
        """z with R z = r, (N x K): for a Gaussian, the residual in noise standard deviations."""


def as_positive(name: str, value: float | Sequence[float] | Tensor) -> Tensor:
    """A positive number or 1-D sequence as float64, or an error that names it."""
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name}: expected a number or a sequence of numbers, got {type(value).__name__}"
        ) from error
    if tensor.dim() > 1:
        raise ValueError(
            f"{name}: expected a number or one value per output (C,), got {tuple(tensor.shape)}"
        )
    if not bool((torch.isfinite(tensor) & (tensor > 0)).all()):
        raise ValueError(f"{name}: expected finite positive numbers, got {tensor.tolist()}")
    return tensor
