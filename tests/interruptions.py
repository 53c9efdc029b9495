"""Work that is interrupted on its way, as Ctrl-C does it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lingp

_PACKAGE = str(Path(lingp.__file__).parent)
_ITSELF = str(Path(_PACKAGE) / "runtime" / "restoring.py")


def calls(work: Callable[[], Any], at: Callable[[int], None] = lambda number: None) -> int:
    """How many functions of the package `work` calls; `at` is called at each, with its number."""
    number = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal number
        file = frame.f_code.co_filename
        # Python swallows what is raised while a generator that wasn't finished is closed
        generator = frame.f_code.co_flags & inspect.CO_GENERATOR
        ours = file.startswith(_PACKAGE) and file != _ITSELF
        if event == "call" and ours and not generator:
            number += 1
            at(number)

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


def interrupt(work: Callable[[], Any], number: int) -> None:
    """Do the work, up to a call of a function of the package."""

    def at(current: int) -> None:
        if current == number:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calls(work, at)
