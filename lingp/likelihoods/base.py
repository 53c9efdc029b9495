"""What inference and predictions need to know of a likelihood."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import gpytorch
import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from lingp.likelihoods.conditional import Conditional
from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.predictives.draws import AffineMixture, quasi_normal, random_normal
from lingp.likelihoods.targets import flatten_pairs, flatten_targets


class Likelihood(gpytorch.Module, Conditional):
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

    found_later: ClassVar[tuple[str, ...]] = ()
    """Attributes that checking targets finds out, which files keep."""

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

    @property
    def untempered(self) -> Likelihood:
        """The likelihood that targets have: tempering is a matter of inference only."""
        return self

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of one datum's targets."""
        return (*output_shape, 2) if self.has_known else output_shape

    def moment_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the predictive mean and variance of one datum."""
        shape = self.target_shape(output_shape)
        return shape[:-1] if self.has_known else shape

    def flatten(
        self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype, pair: str
    ) -> tuple[Tensor, Tensor]:
        """Targets (N x C), or (N x C x 2) where `has_known`; and their values (N x C).

        Parameters
        ----------
        y, output_shape, dtype
            As for `check_targets`.
        pair
            What a target and its known quantity are, for errors: "(count, exposure)".
        """
        if not self.has_known:
            values = flatten_targets(y, output_shape, dtype, allow_missing=True)
            return values, values
        pairs = flatten_pairs(y, output_shape, dtype, pair)
        values, known = pairs.unbind(-1)
        self.check_known(known, "y[..., 1]", missing=values.isnan())
        return pairs, values

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

    def predictive(
        self,
        mean: Tensor,
        covariance: Tensor,
        method: str | None = None,
        *,
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
        num_samples, generator
            For methods that draw.
        """
        method = self.check_method(method)
        expected = (len(mean), *self.moment_shape(tuple(mean.shape[1:])))
        if self.known is not None and self.known.shape != expected:
            raise ValueError(
                f"known: has shape {tuple(self.known.shape)}, but the targets to predict have "
                f"shape {expected}; give one number for each"
            )
        if method == "monte_carlo":
            normal = random_normal(num_samples, mean, generator)
        elif method == "quasi_monte_carlo":
            normal = quasi_normal(num_samples or 1024, mean)
        else:
            return self.integrated(mean, covariance, method)
        return AffineMixture(self, mean, covariance, normal)

    def forward(self, function_dist: MultivariateNormal) -> MultivariateNormal:
        """`likelihood(gp(X))`: the targets at all rows of X, as GPyTorch's likelihoods give them.

        Raises
        ------
        TypeError
            Unless noise is Gaussian: the targets are not normal then.
        """
        raise TypeError(
            f"likelihood(gp(X)): targets of {type(self).__name__} have no normal distribution; "
            "call gp.predict(X), or gp.predict_joint(X)"
        )

    def integrated(self, mean: Tensor, covariance: Tensor, method: str) -> Predictive:
        """The predictive by one of `methods` other than the two that average over nodes of f.

        A class that has only "monte_carlo" and "quasi_monte_carlo" doesn't need it.

        Raises
        ------
        TypeError
            If `methods` names a way that the class doesn't compute.
        """
        raise TypeError(
            f"methods: {type(self).__name__} names {method!r} among them and doesn't compute it; "
            "write integrated(mean, covariance, method), or leave it out"
        )

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
            The class has an attribute of this name, `Hyperparameter()`, to get and set it by.
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


class Hyperparameter:
    """What `register_positive` made, as an attribute of this name that can be set."""

    def __set_name__(self, owner: type[Likelihood], name: str) -> None:
        self.name = name

    def __get__(self, module: Likelihood | None, owner: type[Likelihood]) -> Tensor:
        return self if module is None else module.positive(self.name)  # type: ignore[return-value]

    def __set__(self, module: Likelihood, value: float | Sequence[float] | Tensor) -> None:
        module.set_positive(self.name, value)


def as_numbers(name: str, value: Any, expected: str) -> Tensor:
    """Numbers that a user gave, as a float64 tensor of their own, or an error that names them."""
    try:
        return torch.as_tensor(value, dtype=torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}") from error


def as_positive(name: str, value: float | Sequence[float] | Tensor) -> Tensor:
    """A positive number or 1-D sequence as float64, or an error that names it."""
    tensor = as_numbers(name, value, "a number or a sequence of numbers")
    if tensor.dim() > 1:
        raise ValueError(
            f"{name}: expected a number or one value per output (C,), got {tuple(tensor.shape)}"
        )
    if not bool((torch.isfinite(tensor) & (tensor > 0)).all()):
        raise ValueError(f"{name}: expected finite positive numbers, got {tensor.tolist()}")
    return tensor
