"""What a weight prior is: variances of weights, and a mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import gpytorch
import torch
from gpytorch.constraints import Interval, Positive
from torch import Tensor

if TYPE_CHECKING:
    from lingp.linearization.frozen import FrozenCopy

WeightMean = float | Tensor | Literal["network"]


class Prior(gpytorch.Module, ABC):
    """A Gaussian prior on the weights, θ ~ N(μ0, Σ0), Σ0 = diag(v).

    Some priors have one variance for each of the L parameter tensors, others one for each of the P
    weights. A prior is written down before the network is known and learns the parameter tensors'
    names and shapes from `bind`.

    Hyperparameters are kept in float64, whatever torch's default dtype is, so that a precision of
    0.1 means 0.1; `prior.to(dtype=...)` changes that. They are ordinary GPyTorch hyperparameters:
    raw parameters with a constraint (`exp` by default, so raw values are logarithms), and
    GPyTorch priors can be registered on them.

    Parameters
    ----------
    mean
        μ0: a number, one value per weight as a flat (P,) tensor, or "network": the weights of the
        network that the prior is bound to, of another one when it is bound to that. Trainings hold
        it at the weights they start from, see `hold_mean`.
    """

    mean: Tensor
    names: tuple[str, ...] | None
    shapes: tuple[torch.Size, ...] | None
    raw_precision: torch.nn.Parameter

    group: Tensor | None
    """Of bound priors with one variance per weight: the number of each weight's precision, (P,)."""

    follows_network: bool = False
    """Whether μ0 is the weights of the network that the prior was last bound to."""

    isotropic: bool = False
    """Whether Σ0 = v I, one v for all weights: one eigendecomposition then serves every v."""

    columnwise: bool = False
    """Whether variances vary along both axes of weight matrices: kernels then take the columns of
    the Jacobian, not the layers' factors."""

    found_later: ClassVar[tuple[str, ...]] = ("follows_network",)
    """Attributes that binding finds out, which files keep."""

    def __init__(self, mean: WeightMean = 0.0) -> None:
        super().__init__()
        if isinstance(mean, str):
            if mean != "network":
                raise ValueError(
                    f'mean: expected a number, a flat (P,) tensor or "network", got {mean!r}'
                )
            self.follows_network, mean = True, torch.zeros(0)  # until there is a network
        mean = torch.as_tensor(mean, dtype=torch.float64).detach().clone()
        if mean.dim() > 1 or not bool(torch.isfinite(mean).all()):
            raise ValueError(
                f"mean: expected a finite number or a flat (P,) tensor, got shape "
                f"{tuple(mean.shape)}" + ("" if mean.dim() > 1 else " with NaN or infinite values")
            )
        self.register_buffer("mean", mean)
        self.register_buffer("group", None, persistent=False)
        self.names = self.shapes = None

    def bind(
        self,
        names: Iterable[str],
        shapes: Iterable[Sequence[int]] | None = None,
        inputs_first: Collection[str] = (),
    ) -> Prior:
        """Fix the parameter tensors the prior is over; returns self.

        Binding again to the same names changes nothing; binding to other names is an error,
        because hyperparameters that another model is using would change under it.

        Parameters
        ----------
        names
            One name per parameter tensor, in the order of the columns of the Jacobian.
        shapes
            Of the parameter tensors; for priors with one variance per weight.
        inputs_first
            Names of the weights that are stored (inputs x outputs), as those of embeddings and of
            transposed convolutions are; others are (outputs x inputs).
        """
        if self.follows_network and self.names is None:
            raise ValueError(
                'mean: "network" takes the weights of a network, got names only; call '
                "bind_to(linearized_network), or hand the prior to LinearizedGP or NTKernel"
            )
        return self._bind(names, shapes, inputs_first)

    def _bind(
        self,
        names: Iterable[str],
        shapes: Iterable[Sequence[int]] | None = None,
        inputs_first: Collection[str] = (),
    ) -> Prior:
        names = tuple(names)
        sizes = None if shapes is None else tuple(torch.Size(shape) for shape in shapes)
        if not names:
            raise ValueError("names: a prior needs at least one parameter tensor, got none")
        if sizes is not None and len(sizes) != len(names):
            raise ValueError(
                f"shapes: got {len(sizes)} for {len(names)} parameter tensors; expected one each"
            )
        if self.names is None:
            self._check_tensors(names, sizes)
            self.names, self.shapes = names, sizes
            self._on_bind(frozenset(inputs_first))
        elif self.names != names or (None not in (sizes, self.shapes) and sizes != self.shapes):
            raise ValueError(
                f"this {type(self).__name__} prior already belongs to a network with "
                f"{len(self.names)} parameter tensors ({self._first(self.names, self.shapes)}, "
                f"...) and can't be bound to another with {len(names)} "
                f"({self._first(names, sizes)}, ...); make a new prior for it"
            )
        self.shapes = self.shapes or sizes
        return self

    def bind_to(self, network: FrozenCopy) -> Prior:
        """`bind` to the uncertain parameter tensors of a linearised network; returns self.

        A prior that was bound before the network knew which layer is its last follows it. With
        mean="network", μ0 becomes the weights of this network.
        """
        names = tuple(network.parameter_names)
        if self.names is not None and self.names == network.assumed_names != names:
            self._forget_tensors(names)
        self._bind(names, network.parameter_shapes, network.inputs_first_names)
        if self.follows_network:
            weights = network.weights().to(self.mean)
            if not torch.equal(self.mean, weights):
                self.mean = weights  # another tensor: whoever holds the old one keeps its values
        return self

    def _forget_tensors(self, names: tuple[str, ...]) -> None:
        """Be as before `bind`, to be bound to these names: one precision for whatever comes."""
        assert self.names is not None
        precision = getattr(self, "raw_precision", None)
        if precision is not None and precision.dim() == 1:
            if not bool((precision == precision[0]).all()):
                raise ValueError(
                    f'parameters: "last_layer" was taken for {self.names[0]}, ..., which this '
                    f"{type(self).__name__} prior has precisions for, but the network's outputs "
                    f"depend on {names[0]}, ...; choose them by a list of names"
                )
            one = precision.detach()[:1].clone()
            self.raw_precision = torch.nn.Parameter(one, precision.requires_grad)
        self.names = self.shapes = None

    def hold_mean(self) -> Prior:
        """Keep μ0 as it is, also when the prior is bound to other weights; returns self.

        With mean="network" it stays at the weights of the network that the prior is bound to now.
        Training that begins there is pulled back to where it began: the L2-SP penalty for transfer
        learning.

        References
        ----------
        Li, Grandvalet and Davoine, 2018, "Explicit inductive bias for transfer learning with
        convolutional networks".
        """
        self._check_bound()
        self.follows_network = False
        return self

    @staticmethod
    def _first(names: tuple[str, ...], shapes: tuple[torch.Size, ...] | None) -> str:
        return names[0] if shapes is None else f"{names[0]} of shape {tuple(shapes[0])}"

    @property
    def num_parameter_tensors(self) -> int:
        """L, the number of parameter tensors; known after `bind`."""
        return len(self._check_bound())

    def _check_bound(self) -> tuple[str, ...]:
        """Names of the parameter tensors, or an error where they aren't known."""
        if self.names is None:
            raise RuntimeError(
                f"this {type(self).__name__} prior isn't bound to a network yet: "
                "call bind(parameter_names), or hand it to LinearizedGP or NTKernel"
            )
        return self.names

    @abstractmethod
    def variances(self) -> Tensor:
        """Prior variances, differentiable in hyperparameters.

        One per parameter tensor, (L,), or one per weight, (P,).
        """

    def _check_tensors(self, names: tuple[str, ...], shapes: tuple[torch.Size, ...] | None) -> None:
        """Raise if a prior of this kind can't be over these parameter tensors."""

    def _on_bind(self, inputs_first: frozenset[str]) -> None:
        """Give the hyperparameters their final shape; `names` and `shapes` are known."""

    def _register_precision(self, precision: Tensor, constraint: Interval | None) -> None:
        """Make `raw_precision`, with the constraint under which it is a precision."""
        if not bool((torch.isfinite(precision) & (precision > 0)).all()):
            raise ValueError(
                f"precision: expected finite positive numbers, got {_shown(precision)}"
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
                    f"precision: {_shown(precision)} lies outside the constraint {constraint}"
                )
            self.initialize(raw_precision=raw)

    @property
    def precision(self) -> Tensor:
        """Prior precision(s), 1 / variance; settable."""
        precision: Tensor = self.raw_precision_constraint.transform(self.raw_precision)
        return precision

    @precision.setter
    def precision(self, value: float | Tensor) -> None:
        raw = self.raw_precision
        value = torch.as_tensor(value, dtype=raw.dtype, device=raw.device).expand_as(raw)
        if not bool((torch.isfinite(value) & (value > 0)).all()):
            raise ValueError(f"precision: expected finite positive numbers, got {_shown(value)}")
        self.initialize(raw_precision=self.raw_precision_constraint.inverse_transform(value))

    def extra_repr(self) -> str:
        # a prior of one's own may have no precision
        parts = [f"precision={_shown(self.precision)}"] if hasattr(self, "raw_precision") else []
        if self.follows_network:
            parts.append('mean="network"')
        elif bool(self.mean.any()):
            parts.append(f"mean={_shown(self.mean)}")
        return ", ".join(parts)


def _shown(values: Tensor) -> str:
    """The first few values."""
    shown = ", ".join(f"{value:.4g}" for value in values.detach().flatten()[:4].tolist())
    return shown if values.numel() == 1 else f"[{shown}{', ...' if values.numel() > 4 else ''}]"


def as_precision(precision: float | Tensor) -> Tensor:
    """A precision as a float64 tensor; numbers and tensors are accepted, nothing else."""
    if isinstance(precision, bool) or not isinstance(precision, (int, float, Tensor)):
        raise TypeError(f"precision: expected a number or a tensor, got {type(precision).__name__}")
    return torch.as_tensor(precision, dtype=torch.float64).detach().clone()


def check_names(given: Collection[str], names: Collection[str]) -> None:
    """Raise unless a mapping of precisions names every parameter tensor and nothing else."""
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown:
        raise ValueError(
            f"precision: the mapping must name every parameter tensor; missing: "
            f"{missing or 'none'}, not in the network: {unknown or 'none'}"
        )
