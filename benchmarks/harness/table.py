"""One Markdown table, and what a reader must know to judge it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from .rounds import Field, Result

_MIB = 2**20


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded so that it reads as plain text too; numbers to the right."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    right = [column > 1 for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        return "| " + " | ".join(padded) + " |"

    rule = [
        "-" * (width - 1) + ":" if r else "-" * width
        for width, r in zip(widths, right, strict=True)
    ]
    return "\n".join([line(cells[0]), line(rule), *(line(row) for row in cells[1:])])


def timing_cells(result: Result) -> list[str]:
    """Median, range and number of the timed runs; for a failed contender, that it failed."""
    if result.failure:
        return ["failed", "–", "–"]
    low, high = min(result.seconds), max(result.seconds)
    span = f"{milliseconds(low)}–{milliseconds(high)}"
    return [milliseconds(result.median), span, str(len(result.seconds))]


def failures(results: Mapping[str, Result], case: str) -> list[str]:
    """A line for every contender that failed, with the reason."""
    return [
        f"- {name} failed on {case}: {result.failure}"
        for name, result in results.items()
        if result.failure
    ]


def milliseconds(seconds: float) -> str:
    """Three significant digits."""
    value = 1e3 * seconds
    if value != value:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def mebibytes(size: int | None) -> str:
    return "–" if size is None else f"{size / _MIB:.1f}"


def factor(value: float) -> str:
    """A ratio: 0.83, 1.7, 24."""
    if value != value:
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def scientific(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def machine(field: Field, rates: Mapping[str, float]) -> str:
    """One line about the machine: processor, cores, threads, load, GEMM rate in this run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    measured = ", ".join(f"{rate / 1e9:.0f} GFLOP/s {dtype}" for dtype, rate in rates.items())
    load = "" if field.load is None else f"; load average before the run {field.load:.1f}"
    return (
        f"{processor()}, {cores} cores, {field.threads} threads for every contender{load}; "
        f"GEMM in this run: {measured or 'not measured'}; "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    )


def versions(of: Mapping[str, Mapping[str, str]]) -> str:
    """Each contender with the versions it ran on."""
    parts = []
    for name, packages in of.items():
        inside = ", ".join(f"{package} {version}" for package, version in packages.items())
        parts.append(f"{name} ({inside})")
    return "; ".join(parts)


def verdict(
    what: str, value: float, bound: float, *, at_most: bool = False, unit: str = "×"
) -> str:
    """A target beside what was measured, met or not."""
    if value != value:
        return f"- {what}: not measured"
    met = "met" if (value <= bound if at_most else value >= bound) else "not met"
    sign = "≤" if at_most else "≥"
    shown = scientific(value) if 0 < value < 1e-2 else factor(value)
    return f"- {what}: **{shown}{unit}** (target {sign} {bound:g}{unit}: {met})"


def percent(value: float) -> str:
    """A share: 0.734 is 73 %."""
    return "–" if value != value else f"{100 * value:.0f} %"


def gigaflops(rate: float) -> str:
    """A rate in 1e9 operations a second."""
    return "–" if rate != rate else f"{rate / 1e9:.3g}"
