"""Modules of hyperparameters that files can describe: of which class, made with which arguments.

A prior or likelihood of one's own is saved like lingp's if its class is decorated:

    @described(noise=start("noise"), floor=same("floor"))
    class Mine(Likelihood): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

Arguments = Mapping[str, Callable[[Any], Any]]

_ARGUMENTS: dict[type, Arguments] = {}


def described(**arguments: Callable[[Any], Any]) -> Callable[[C], C]:
    """Decorate a class of which objects can be made again from a file.

    Parameters
    ----------
    **arguments
        For each argument of the constructor that a file needs, what it is, from an object; plain
        numbers, strings and lists, or tensors. Values of parameters and buffers are put in later.
    """

    def register(cls: C) -> C:
        _ARGUMENTS[cls] = arguments
        return cls

    return register


def start(name: str) -> Callable[[Any], Any]:
    """A number, or one per output, to construct with: the value comes from the parameters."""

    def value(module: Any) -> Any:
        raw = getattr(module, f"raw_{name}", None)
        if raw is None:
            return None
        return 4.0 if raw.dim() == 0 else [4.0] * len(raw)

    return value


def same(name: str) -> Callable[[Any], Any]:
    """The attribute of this name."""
    return lambda module: getattr(module, name)


def arguments_of(cls: type) -> Arguments | None:
    """What `described` was given for a class; None where it wasn't."""
    return _ARGUMENTS.get(cls)


def class_named(name: str) -> type:
    """The described class of this name; the one that was described last, if there are several."""
    return next(cls for cls in reversed(_ARGUMENTS) if cls.__qualname__ == name)
