"""Three ways to a posterior on one GPU: time, share of the card's rate, memory; all checked.

Data and weights are random: nothing is read, downloaded or trained.

    exact       function space, N·C = 40,000 (N = 4,000, ten outputs), MLP 64-512-512-10
    float32     the kernel of the same in float32 (its factorisation is beyond float32)
    sparse      60,000 images, ten classes, LeNet (P = 61k), M = 256 inducing inputs
    iterative   N·C = 50,000 (N = 5,000), MLP 128-2304-2304-2304-10 (P = 10.9M)

Every stage has a process of its own and a time limit; one that fails is a row that says so. Two
checks per stage, both against what lingp has no part in:

    dense       a small problem of the same kind against dense Jacobians in float64
    full size   the posterior mean's equation Fᵀ Λ (w - F u) = u for a random w, with the Jacobian's
                products by forward and reverse mode autodiff: what is left, relative to Fᵀ Λ w (for
                the kernel: some of its rows)

    PYTHONPATH=. python benchmarks/gpu.py --output gpu.md     # under four minutes, needs CUDA
    PYTHONPATH=. python benchmarks/gpu.py --quick             # small sizes, on any device
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_stages import STAGES, Record, rates
from harness import command_line, table

TOTAL_SECONDS = 225.0
STAGE_SECONDS = 75.0


@dataclass(frozen=True)
class Outcome:
    """A stage's record, or why there is none."""

    record: Record | None
    failure: str
    seconds: float


def launched(name: str, quick: bool, device: str, limit: float) -> Outcome:
    """A stage in a process of its own, which is ended after `limit` seconds."""
    start = time.perf_counter()
    command = [sys.executable, __file__, "--stage", name, "--device", device]
    if quick:
        command.append("--quick")

    def over(record: Record | None, failure: str) -> Outcome:
        return Outcome(record, failure, time.perf_counter() - start)

    if limit <= 0:
        return over(None, "no time left")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return over(None, f"no answer within {limit:.0f} s")
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return over(None, f"exit status {done.returncode}: {last[:200]}")
    return over(Record.from_json(done.stdout.splitlines()[-1]), "")


def rows_of(name: str, outcome: Outcome, card: dict[str, Any]) -> list[list[str]]:
    """One row per part of a stage, and one for the whole."""
    record = outcome.record
    if record is None:
        return [[name, "failed", *["–"] * 5, "–", "–"]]
    rate = card.get(record.dtype, float("nan"))
    rows = []
    for part in record.parts:
        speed = part.flops / part.seconds
        counted = part.flops > 0
        rows.append(
            [
                name,
                part.name,
                record.dtype,
                f"{part.seconds:.3g}",
                f"{part.flops / 1e12:.3g}" if counted else "–",
                f"{speed / 1e12:.3g}" if counted else "–",
                table.percent(speed / rate) if counted else "–",
                "",
                "",
            ]
        )
    total = sum(part.seconds for part in record.parts)
    shown = ", ".join(f"{c.name} {table.scientific(c.value)}" for c in record.checks)
    passed = all(check.passed for check in record.checks)
    peak = "–" if record.peak is None else f"{record.peak / 2**30:.1f}"
    checks = shown if passed else f"WRONG: {shown}"
    rows.append([name, "all", record.dtype, f"{total:.3g}", "", "", "", peak, checks])
    return rows


_HEADER = ["stage", "part", "dtype", "s", "TFLOP", "TFLOP/s", "of GEMM", "peak (GiB)", "checks"]


def report(outcomes: dict[str, Outcome], card: dict[str, Any], seconds: float) -> str:
    """The table, and what it is about."""
    rows = [row for name, outcome in outcomes.items() for row in rows_of(name, outcome, card)]
    lines = []
    for name, outcome in outcomes.items():
        if outcome.record is None:
            lines.append(f"- {name} failed after {outcome.seconds:.0f} s: {outcome.failure}")
            continue
        facts = ", ".join(f"{key} {_shown(value)}" for key, value in outcome.record.facts.items())
        lines.append(f"- {name} ({outcome.seconds:.0f} s in all): {outcome.record.what}; {facts}")
    measured_rates = ", ".join(
        f"GEMM {card[dtype] / 1e12:.3g} TFLOP/s {dtype}"
        for dtype in ("float64", "float32")
        if dtype in card
    )
    copy = f", copy {card['copy'] / 1e9:.0f} GB/s" if "copy" in card else ""
    return "\n".join(
        [
            "# Posteriors on one card",
            "",
            f"{card.get('device', 'unknown device')}: {measured_rates}{copy}; torch "
            f"{torch.__version__}, CUDA {card.get('cuda')}, Python {platform.python_version()}; "
            f"{seconds:.0f} s in all",
            "",
            table.markdown_table(_HEADER, rows),
            "",
            "TFLOP: counted by formula, for variances as if all took the iterations of the last. "
            "Peak: largest allocation on the card. Checks: see the script; dense and full size are "
            "relative errors.",
            "",
            *lines,
        ]
    )


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, on any device")
    parser.add_argument("--only", metavar="NAME,...", help=f"stages ({', '.join(STAGES)})")
    parser.add_argument("--limit", type=float, default=STAGE_SECONDS, help="seconds for a stage")
    parser.add_argument("--device", help="cuda where there is one, else cpu")
    parser.add_argument("--output", type=Path, help="write the report to this file too")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.stage:
        work = {"rates": rates, **STAGES}[arguments.stage]
        print(json.dumps(asdict(work(torch.device(device), arguments.quick))))
        return
    if device == "cpu" and not arguments.quick:
        raise SystemExit("no CUDA device; --quick shows on the CPU that everything runs")
    names = arguments.only.split(",") if arguments.only else list(STAGES)
    if unknown := sorted(set(names) - set(STAGES)):
        raise SystemExit(f"no stage {', '.join(unknown)}; there are: {', '.join(STAGES)}")
    start = time.perf_counter()

    def run(name: str) -> Outcome:
        left = TOTAL_SECONDS - (time.perf_counter() - start)
        return launched(name, arguments.quick, device, min(arguments.limit, left))

    first = run("rates")
    card = first.record.facts if first.record else {"device": f"rates failed: {first.failure}"}
    outcomes = {}
    for name in names:
        outcomes[name] = run(name)
        print(f"{name}: {outcomes[name].seconds:.0f} s", file=sys.stderr, flush=True)
    text = report(outcomes, card, time.perf_counter() - start)
    command_line.publish(text, arguments.output)
    failed = [name for name, outcome in outcomes.items() if outcome.failure]
    checks = [c for o in outcomes.values() if o.record for c in o.record.checks]
    if failed or not all(check.passed for check in checks):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
