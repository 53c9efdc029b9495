"""Results that are recomputed whenever a value they depend on has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class ValueCache(Generic[T]):
    """Keeps one result together with what it was computed from: values of tensors and objects."""

    def __init__(self) -> None:
        self._key: tuple[Tensor, ...] | None = None
        self._owners: tuple[object, ...] = ()
        self._result: T | None = None

    @property
    def kept(self) -> T | None:
        """The kept result, if there is one."""
        return self._result

    def get(
        self, key: tuple[Tensor, ...], make: Callable[[], T], owners: tuple[object, ...] = ()
    ) -> T:
        """The kept result if nothing it depends on has changed, else `make()`.

        Parameters
        ----------
        key
            Tensors, compared by value.
        make
            Computes the result.
        owners
            Objects, compared by identity.
        """
        known = self._key is not None and same_objects(self._owners, owners)
        if self._key is None or not known or not same_values(self._key, key):
            self._key = self._result = None  # free the old result before making the new one
            self._result = make()
            self._key, self._owners = tuple(t.detach().clone() for t in key), owners
        result: T = self._result  # type: ignore[assignment]
        return result


def same_values(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    """Whether tensors have the same values, shapes, dtypes and devices."""
    return len(old) == len(new) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
        for a, b in zip(old, new, strict=True)
    )


def same_objects(old: Sequence[object], new: Sequence[object]) -> bool:
    """Whether they are the same objects."""
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))
