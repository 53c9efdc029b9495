"""The flags every benchmark has."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from .environments import CACHE_VARIABLE, cache_folder
from .rounds import Contender, Schedule


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the common flags."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="small sizes, to see that all works")
    made.add_argument("--only", metavar="NAME,...", help="these contenders only")
    made.add_argument("--skip", metavar="NAME,...", default="", help="all contenders but these")
    made.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    made.add_argument("--output", type=Path, help="write the report to this file too")
    made.add_argument("--turns", type=int, help="timed turns per contender (default: by time)")
    made.add_argument(
        "--venvs",
        metavar="FOLDER",
        help=f"the peers' environments (or {CACHE_VARIABLE}; .venvs here)",
    )
    return made


def chosen(contenders: Sequence[Contender], arguments: argparse.Namespace) -> list[Contender]:
    """The contenders the flags leave, in the order given."""
    names = [contender.name for contender in contenders]
    only = arguments.only.split(",") if arguments.only else names
    skip = arguments.skip.split(",") if arguments.skip else []
    unknown = sorted({*only, *skip} - set(names))
    if unknown:
        raise SystemExit(f"no contender {', '.join(unknown)}; there are: {', '.join(names)}")
    return [c for c in contenders if c.name in only and c.name not in skip]


def cache(arguments: argparse.Namespace) -> Path:
    """The folder of the peers' environments."""
    return cache_folder(arguments.venvs)


def schedule(arguments: argparse.Namespace) -> Schedule:
    """How often contenders work, from the flags."""
    if arguments.turns is not None:
        return Schedule(least=arguments.turns, most=arguments.turns)
    return Schedule(least=1, most=1) if arguments.quick else Schedule()


def publish(report: str, output: Path | None) -> None:
    """Print the report; write it to a file if one was named."""
    print(report)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(report + "\n")
