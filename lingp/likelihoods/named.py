"""Likelihoods by name: what `LinearizedGP(net, "poisson")` stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lingp.likelihoods.base import Likelihood

L = TypeVar("L", bound=Likelihood)

_BY_NAME: dict[str, Callable[[], Likelihood]] = {}


def named(name: str) -> Callable[[type[L]], type[L]]:
    """Decorate a class of likelihoods that is to be known by a name, with its defaults.

    Parameters
    ----------
    name
        What users write in place of an object. A name that is taken gets the new meaning.
    """

    def register(cls: type[L]) -> type[L]:
        _BY_NAME[name] = cls
        return cls

    return register


def as_likelihood(likelihood: Likelihood | str) -> Likelihood:
    """Return a `Likelihood`: an object as it is, a name with its default hyperparameters."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    names = ", ".join(repr(name) for name in sorted(_BY_NAME))
    if not isinstance(likelihood, str):
        raise TypeError(
            f"likelihood: expected a name ({names}) or an object from lingp.likelihoods, "
            f"got {type(likelihood).__name__}"
        )
    if likelihood not in _BY_NAME:
        raise ValueError(f"likelihood: {likelihood!r} is not known; the names are {names}")
    return _BY_NAME[likelihood]()
