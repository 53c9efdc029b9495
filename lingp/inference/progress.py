"""A progress bar that shows up only when work is long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

SECONDS_BEFORE_SHOWN = 2.0


def track(
    items: Iterable[T], description: str, *, total: int | None = None, show: bool = True
) -> Iterator[T]:
    """Iterate over `items`, with a bar once the work has taken two seconds.

    Without tqdm installed, or with `show=False`, plain iteration.
    """
    if show:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            show = False
    if not show:
        yield from items
        return
    yield from tqdm(items, desc=description, total=total, delay=SECONDS_BEFORE_SHOWN, leave=False)
