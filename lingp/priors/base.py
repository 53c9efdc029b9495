"""What a weight prior is: one variance per parameter tensor, and a mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import gpytorch
import torch
from gpytorch.constraints import Interval, Positive
from torch import Tensor


class Prior(gpytorch.Module, ABC):
    """A Gaussian prior on the weights, θ ~ N(μ0, Σ0), Σ0 = blockdiag(v_l I).

    `v_l` is the prior variance of the l-th parameter tensor. A prior is written down before the
    network is known and learns the parameter tensors' names from `bind`.

    Hyperparameters are kept in float64, whatever torch's default dtype is, so that a precision of
    0.1 means 0.1; `prior.to(dtype=...)` changes that. They are ordinary GPyTorch hyperparameters:
    raw parameters with a constraint (`exp` by default, so raw values are logarithms), and
    GPyTorch priors can be registered on them.

    Parameters
    ----------
    mean
        μ0: a number, or one value per weight as a flat (P,) tensor.
    """

    mean: Tensor
    names: tuple[str, ...] | None
    raw_precision: torch.nn.Parameter

    isotropic: bool = False
    """Whether Σ0 = v I, one v for all weights: one eigendecomposition then serves every v."""

    def __init__(self, mean: float | Tensor = 0.0) -> None:
        super().__init__()
        mean = torch.as_tensor(mean, dtype=torch.float64).detach().clone()
        if mean.dim() > 1 or not bool(torch.isfinite(mean).all()):
            raise ValueError(
                f"mean: expected a finite number or a flat (P,) tensor, got shape "
                f"{tuple(mean.shape)}" + ("" if mean.dim() > 1 else " with NaN or infinite values")
            )
        self.register_buffer("mean", mean)
        self.names = None

    def bind(self, names: Iterable[str]) -> Prior:
        """Fix the parameter tensors the prior is over; returns self.

        Binding again to the same names changes nothing; binding to other names is an error,
        because hyperparameters that another model is using would change under it.

        Parameters
        ----------
        names
            One name per parameter tensor, in the order of the columns of the Jacobian.
        """
        names = tuple(names)
        if not names:
            raise ValueError("names: a prior needs at least one parameter tensor, got none")
        if self.names is None:
            self._check_names(names)
            self.names = names
            self._on_bind(names)
        elif self.names != names:
            raise ValueError(
                f"this {type(self).__name__} prior already belongs to a network with "
                f"{len(self.names)} parameter tensors ({self.names[0]}, ...) and can't be bound to "
                f"another with {len(names)} ({names[0]}, ...); make a new prior for it"
            )
        return self

    @property
    def num_parameter_tensors(self) -> int:
        """L, the number of parameter tensors; known after `bind`."""
        if self.names is None:
            raise RuntimeError(
                f"this {type(self).__name__} prior isn't bound to a network yet: "
                "call bind(parameter_names), or hand it to LinearizedGP or NTKernel"
            )
        return len(self.names)

    @abstractmethod
    def variances(self) -> Tensor:
        """Prior variance of each parameter tensor, (L,), differentiable in hyperparameters."""

    def _check_names(self, names: tuple[str, ...]) -> None:
        """Raise if a prior of this kind can't be over these parameter tensors."""

    def _on_bind(self, names: tuple[str, ...]) -> None:
        """Give the hyperparameters their final shape."""

    def _register_precision(self, precision: Tensor, constraint: Interval | None) -> None:
        """Make `raw_precision`, with the constraint under which it is a precision."""
        if not bool((torch.isfinite(precision) & (precision > 0)).all()):
            raise ValueError(
                f"precision: expected finite positive numbers, got {precision.tolist()}"
            )
        # exp, not softplus: precisions span many orders of magnitude and are searched by logarithm
        constraint = constraint or Positive(transform=torch.exp, inv_transform=torch.log)
        self.register_parameter(
            "raw_precision", torch.nn.Parameter(torch.zeros_like(precision, dtype=torch.float64))
        )
        self.register_constraint("raw_precision", constraint)
        if constraint.initial_value is None:
            raw = constraint.inverse_transform(precision.to(torch.float64))
            if not bool(torch.isfinite(raw).all()):
                raise ValueError(
                    f"precision: {precision.tolist()} lies outside the constraint {constraint}"
                )
            self.initialize(raw_precision=raw)

    @property
    def precision(self) -> Tensor:
        """Prior precision(s), 1 / variance; settable."""
        precision: Tensor = self.raw_precision_constraint.transform(self.raw_precision)
        return precision

    @precision.setter
    def precision(self, value: float | Tensor) -> None:
        value = torch.as_tensor(value).to(self.raw_precision).expand_as(self.raw_precision)
        if not bool((torch.isfinite(value) & (value > 0)).all()):
            raise ValueError(f"precision: expected finite positive numbers, got {value.tolist()}")
        self.initialize(raw_precision=self.raw_precision_constraint.inverse_transform(value))

    def extra_repr(self) -> str:
        values = self.precision.detach().flatten().tolist()
        shown = ", ".join(f"{value:.4g}" for value in values[:4])
        shown = shown if len(values) == 1 else f"[{shown}{', ...' if len(values) > 4 else ''}]"
        return f"precision={shown}"


def as_precision(precision: float | Tensor) -> Tensor:
    """A precision as a float64 tensor; numbers and tensors are accepted, nothing else."""
    if isinstance(precision, bool) or not isinstance(precision, (int, float, Tensor)):
        raise TypeError(f"precision: expected a number or a tensor, got {type(precision).__name__}")
    return torch.as_tensor(precision, dtype=torch.float64).detach().clone()
