"""A progress bar that shows up only when work is long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

SECONDS_BEFORE_SHOWN = 2.0


def track(
    items: Iterable[T], description: str, *, total: int | None = None, show: bool = True
) -> Iterator[T]:
    """Iterate over `items`, with a bar once the work has taken two seconds.

    Without tqdm installed, or with `show=False`, plain iteration.
    """
    bar = _bar_class() if show else None
    if bar is None:
        yield from items
        return
    yield from bar(items, desc=description, total=total, delay=SECONDS_BEFORE_SHOWN, leave=False)


@contextmanager
def count(
    description: str, *, total: int | None = None, show: bool = True
) -> Iterator[Callable[[], object]]:
    """Gives a function to call after each step of work; `total` is how many are expected."""
    bar = _bar_class() if show else None
    if bar is None:
        yield lambda: None
        return
    with bar(desc=description, total=total, delay=SECONDS_BEFORE_SHOWN, leave=False) as steps:
        yield steps.update


def _bar_class() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm
