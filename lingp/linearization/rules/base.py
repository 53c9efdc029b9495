"""What a layer rule is: how one operation's parameters enter its output.

An operation is a call of a torch function (`torch.nn.functional.linear(x, W, b)`) or of a module
class that a user registered. While the network runs, calls of registered operations on selected
parameters are recorded; after one batched backward pass, the rule turns the recorded input and the
gradients in the output into Jacobian pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn


@dataclass(frozen=True)
class Outer:
    """∂f/∂W as Σ_s g_s a_sᵀ: `a` (B, S, I), `g` (C, B, S, O), B rows.

    `input_major` says that the weight is stored (I, O); `bias` names a parameter of size O that the
    operation adds to every position.
    """

    a: Tensor
    g: Tensor
    input_major: bool = False
    bias: str | None = None


@dataclass(frozen=True)
class Dense:
    """∂f/∂W written out: `jacobian` (C, B, *shape of W)."""

    jacobian: Tensor


@dataclass(frozen=True)
class Lookup:
    """∂f/∂W for a table of which rows `index` (B, S) are read with factor `scale` (B, S)."""

    index: Tensor
    scale: Tensor
    g: Tensor


Piece = Outer | Dense | Lookup


@dataclass(frozen=True)
class Operation:
    """One call, with its arguments named.

    Attributes
    ----------
    input : the argument that carries the examples; None if the operation has none (`p.expand(N,
        ...)`).
    parameters : the arguments that may be parameters, by role.
    options : everything else, as the operation takes it.
    axes : where in the output the examples may lie; None for any leading axis.
    axis : where they lie, known once `pieces` is called.
    aligned : further inputs, in which the examples lie as in `input`.
    """

    input: Tensor | None
    parameters: Mapping[str, Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[int, ...] | None = (0,)
    axis: int = 0
    aligned: Mapping[str, Tensor] = field(default_factory=dict)


class Rule(Protocol):
    """A rule for one kind of operation."""

    def bind(self, *args: Any, **kwargs: Any) -> Operation | None:
        """Name the arguments of a call; None if it is not covered (the fallback takes it)."""
        ...

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> Mapping[str, Piece]:
        """Jacobian pieces by parameter role, from input `x` (B, ...) and gradients `g` (C, B, ...).

        `operation.aligned` has its rows first too.
        """
        ...


FUNCTION_RULES: dict[Callable[..., Any], Rule] = {}

# Operations that overwrite their first argument, and what they compute.
IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {}


def rule_for(*functions: Callable[..., Any]) -> Callable[[type[Rule]], type[Rule]]:
    """Class decorator: use this rule for calls of `functions`."""

    def register(cls: type[Rule]) -> type[Rule]:
        for function in functions:
            FUNCTION_RULES[function] = cls()
        return cls

    return register


def present(**tensors: Tensor | None) -> dict[str, Tensor]:
    """Parameters by role, without those that a call does not have."""
    return {role: t for role, t in tensors.items() if t is not None}


ModulePieces = Callable[[Any, Tensor, Tensor], Mapping[str, "Piece | Tensor"]]


class ModuleRule:
    """A rule for every call of one module class."""

    def __init__(self, function: ModulePieces, any_axis: bool) -> None:
        self.function = function
        self.axes: tuple[int, ...] | None = None if any_axis else (0,)

    def bind(self, *args: Any, **kwargs: Any) -> Operation | None:
        """Modules are recorded by hooks, never through a torch function."""
        return None

    def pieces(self, operation: Operation, x: Tensor, g: Tensor) -> dict[str, Piece]:
        made = self.function(operation.options["module"], x, g)
        return {role: Dense(p) if isinstance(p, Tensor) else p for role, p in made.items()}


MODULE_RULES: dict[type[nn.Module], ModuleRule] = {}


def register_rule(
    layer: type[nn.Module], *, any_axis: bool = False
) -> Callable[[ModulePieces], ModulePieces]:
    """Decorator: use a function as the Jacobian rule of a module class.

    Parameters
    ----------
    layer : the class (not its subclasses). Its `forward` takes a tensor first and returns a tensor.
    any_axis : whether the layer treats all leading axes alike, so that the examples may be on any
        of them, as in `nn.Linear`. Otherwise they must come first.

    Returns
    -------
    A decorator for ``rule(module, x, g) -> {parameter name: piece}``. `x` (B, ...) is the input and
    `g` (C, B, ...) the gradients of the C outputs in the layer's output, rows first. A piece is a
    tensor (C, B, *parameter.shape), or `Outer(a, g)` for ∂f/∂W = Σ_s g_s a_sᵀ, which is much
    cheaper for weight matrices. Parameters that the rule leaves out go through the fallback.

    Raises
    ------
    TypeError
        If `layer` is not a class of modules.

    See Also
    --------
    lingp.linearization.check_rule : compare a rule with the fallback.

    Notes
    -----
    Every rule is also compared with autograd when a network is linearised; one that disagrees there
    is set aside, with a warning, and the fallback is used.
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise TypeError(f"layer: got {layer!r}; expected a subclass of torch.nn.Module")

    def register(function: ModulePieces) -> ModulePieces:
        MODULE_RULES[layer] = ModuleRule(function, any_axis)
        return function

    return register


def unregister_rule(layer: type[nn.Module]) -> None:
    """Forget the rule of a module class; its parameters are then found by the built-in rules."""
    MODULE_RULES.pop(layer, None)
