"""Rules that users add for layers of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from lingp.linearization.rules.base import Dense, Operation, Piece

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
