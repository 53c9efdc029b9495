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

from torch import Tensor


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
