"""What the sparse posterior costs as data grow: time and memory against N.

Regression with Gaussian noise, M inducing inputs chosen greedily, an MLP D-256-256-1 (P ≈ 70k),
keggundirected (57,247 training rows) and kin40k (36,000); N is a geometric series of the rows. The
memory budget is so small that nothing that grows with N is kept: every pass over the data makes
the features again. Timed are

    fit          outputs of the network at all rows
    selection    inducing points, from as many candidates for every N
    evidence     the posterior (one pass), and with it the evidence
    gradient     the evidence again, with its derivatives in all hyperparameters
    predictions  the posterior mean, if it is refitted, and marginals at the test rows

for the network's and the refitted mean and for one prior precision per parameter tensor, whose
gradient takes passes of its own. Every N has a process of its own; they take turns. The largest N
runs once more without the budget, to compare results.

    python benchmarks/scaling.py --output scaling.md
    python benchmarks/scaling.py --sets kin40k --cases network,refit
    python benchmarks/scaling.py --quick
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import networks
import numpy as np
import torch
from harness import command_line, table
from harness.rounds import Contender, Field, Result, Schedule
from torch import Tensor, nn
from training import train_in_batches

SETS = ("keggundirected", "kin40k")
CASES: dict[str, dict[str, str]] = {
    "network": {"mean": "network", "prior": "isotropic"},
    "refit": {"mean": "refit", "prior": "isotropic"},
    "layerwise": {"mean": "network", "prior": "layerwise"},
}
FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 1)  # of which even the smallest is not kept in memory
PARTS = ("fit", "selection", "evidence", "gradient", "predictions")
GROWING = ("fit", "evidence", "gradient")  # what has to grow with N
PRECISION = 1.0
_OURS = "contenders.scaling_lingp"
_KEPT = "all in memory"
_SECONDS = 1800.0  # for one run
_MEGABYTE = 10**6


@dataclass(frozen=True)
class Task:
    """A trained network, its data and the size of the series.

    Attributes
    ----------
    name
        Of the data set.
    architecture
        Of the network.
    data
        Weights, training rows and test rows.
    noise
        Variance of the residuals.
    sizes
        Numbers of training rows, ascending.
    """

    name: str
    architecture: Mapping[str, Any]
    data: Mapping[str, np.ndarray]
    noise: float
    sizes: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        return sum(v.size for name, v in self.data.items() if name.startswith("net."))


def make_task(where: Path, name: str, arguments: argparse.Namespace) -> Task:
    """The data set's split 0 in random order, and a network trained on all of its rows."""
    split = datasets.regression(where, name, 0)
    order = np.random.default_rng(0).permutation(len(split.train.y))[: arguments.rows]
    x, y = split.train.x[order], split.train.y[order]
    width = 8 if arguments.quick else 256
    architecture = {"kind": "mlp", "sizes": [x.shape[1], width, width, 1]}
    torch.manual_seed(0)
    network = networks.build(architecture)
    noise = _train(network, torch.from_numpy(x).float(), torch.from_numpy(y).float(), arguments)
    data = {
        **networks.weights(network.double()),
        "x": x,
        "y": y,
        "test_x": split.test.x[: arguments.points],
    }
    fractions = FRACTIONS[1::2] if arguments.quick else FRACTIONS
    sizes = tuple(round(fraction * len(y)) for fraction in fractions)
    return Task(name, architecture, data, noise, sizes)


def _train(network: nn.Module, x: Tensor, y: Tensor, arguments: argparse.Namespace) -> float:
    """Adam; the variance of the residuals."""

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return (f.squeeze(-1) - y).square().sum() / 2

    train_in_batches(network, loss, x, y, epochs=arguments.epochs, precision=0.0)
    with torch.no_grad():
        return float((network(x).squeeze(-1) - y).square().mean())


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent of N in the seconds, by least squares on logarithms."""
    if len(sizes) < 2:
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


@dataclass(frozen=True)
class Measured:
    """What the contender of one N measured.

    Attributes
    ----------
    seconds
        By part.
    rise
        Bytes above what the process held before.
    data
        Bytes of the rows themselves, which are copied.
    high
        Largest resident set.
    """

    seconds: Mapping[str, float]
    rise: float
    data: float
    high: float

    @classmethod
    def of(cls, results: Sequence[Result]) -> Measured:
        """Medians of several runs; memory of the first, which has a fresh process."""
        seconds = {
            part: statistics.median(float(result.arrays[f"s.{part}"]) for result in results)
            for part in PARTS
        }
        first = results[0]
        rise = float("nan") if first.peak is None else float(first.peak)
        return cls(seconds, rise, float(first.kept["data"]), float(first.arrays["high"]))

    def total(self, parts: Sequence[str] = PARTS) -> float:
        return sum(self.seconds[part] for part in parts)

    def cells(self) -> list[str]:
        memory = (self.rise, self.data, self.high)
        return [
            _seconds(self.total()),
            *(_seconds(self.seconds[part]) for part in PARTS),
            *("–" if size != size else table.mebibytes(int(size)) for size in memory),
        ]


def _seconds(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def beside(streamed: Result, kept: Result) -> str:
    """The largest N without a budget: its cost, and how far each result is from the streamed one.

    Differences are relative to the largest value of each.
    """
    cost = Measured.of([kept])
    parts = [f"all in memory {_seconds(cost.total())} s, {cost.high / 2**20:.0f} MiB peak"]
    for name in ("evidence", "gradient", "mean", "variance"):
        a, b = streamed.arrays[name], kept.arrays[name]
        parts.append(f"{name} {table.scientific(float(np.abs(a - b).max() / np.abs(b).max()))}")
    return ", difference of ".join([parts[0], ", ".join(parts[1:])])


def summary(name: str, sizes: Sequence[int], measured: Sequence[Measured]) -> list[str]:
    """Targets and what was measured, for one set and case."""
    growing = slope(sizes, [m.total(GROWING) for m in measured])
    resident = [m.high for m in measured]
    own = [m.rise - m.data for m in measured]
    lines = [
        (f"{name}: exponent of N in the time", slope(sizes, [m.total() for m in measured]), 1.05),
        (f"{name}: exponent in {', '.join(GROWING)} alone", growing, 1.05),
        (f"{name}: peak resident memory, largest N / smallest", resident[-1] / resident[0], 1.1),
        (f"{name}: rise less the copy of the rows, largest N / smallest", own[-1] / own[0], 1.1),
    ]
    return [
        table.verdict(what, value, bound, at_most=True, unit="") for what, value, bound in lines
    ]


def compare(
    task: Task, case: str, arguments: argparse.Namespace, field: Field
) -> tuple[list[list[str]], list[str], list[str]]:
    """Rows of the table, lines under it, and targets."""
    description = {
        **CASES[case],
        "architecture": task.architecture,
        "dtype": "float64",
        "precision": PRECISION,
        "noise": task.noise,
        "num_inducing": arguments.inducing,
        "memory": round(arguments.budget * _MEGABYTE),
    }
    turns = arguments.turns or (1 if arguments.quick else 2)
    schedule = Schedule(least=1, most=1, timeout=_SECONDS)
    entered = [Contender(f"N = {n}", _OURS, options={"rows": n}) for n in task.sizes]
    runs = [field.answers(description, task.data, schedule, entered) for _ in range(turns)]
    results = {
        c.name: next((run[c.name] for run in runs if run[c.name].failure), runs[0][c.name])
        for c in entered
    }
    label = f"{task.name}, {case}"
    rows, measured = [], []
    for size, contender in zip(task.sizes, entered, strict=True):
        if results[contender.name].failure:
            rows.append([task.name, case, str(size), "failed", *["–"] * 8])
            continue
        measured.append(Measured.of([run[contender.name] for run in runs]))
        rows.append([task.name, case, str(size), *measured[-1].cells()])
    lines = table.failures(results, label)
    targets: list[str] = []
    if len(measured) == len(task.sizes):
        targets = summary(label, task.sizes, measured)
        unlimited = {"rows": task.sizes[-1], "memory": None}
        kept = Contender(_KEPT, _OURS, options=unlimited)
        found = field.answers(description, task.data, schedule, [kept])
        lines += table.failures(found, label)
        if not found[_KEPT].failure:
            lines.append(f"- {label}: {beside(results[entered[-1].name], found[_KEPT])}")
    return rows, lines, targets


def main() -> None:
    parser = command_line.parser(__doc__)
    datasets.add_flags(parser, splits="0:1")
    parser.add_argument("--cases", default=",".join(CASES), help="means and priors, with commas")
    parser.add_argument("--inducing", type=int, help="M (512)")
    parser.add_argument("--points", type=int, help="test rows (1000)")
    parser.add_argument("--rows", type=int, help="most training rows (all)")
    parser.add_argument("--epochs", type=int, help="of training (5)")
    parser.add_argument("--budget", type=float, help="memory budget in MB (64)")
    arguments = parser.parse_args()
    defaults = {"inducing": 512, "points": 1000, "rows": None, "epochs": 5, "budget": 64}
    if arguments.quick:
        defaults = {"inducing": 16, "points": 50, "rows": 1600, "epochs": 1, "budget": 0.2}
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    torch.set_num_threads(arguments.threads)
    sets = datasets.chosen_sets(SETS, arguments)
    where = datasets.folder(arguments.data)
    cases = arguments.cases.split(",")
    if unknown := sorted(set(cases) - set(CASES)):
        raise SystemExit(f"no case {', '.join(unknown)}; there are: {', '.join(CASES)}")

    rows: list[list[str]] = []
    notes: list[str] = []
    lines: list[str] = []
    targets: list[str] = []
    gemm = Contender("gemm", "contenders.gemm", timed_only=True)
    size = 512 if arguments.quick else 4096
    cache = command_line.cache(arguments)
    for name in sets:
        task = make_task(where, name, arguments)
        layers = "-".join(map(str, task.architecture["sizes"]))
        notes.append(f"{name}: MLP {layers}, P = {task.num_parameters}, noise {task.noise:.2g}")
        for case in cases:
            with Field([], cache, arguments.threads) as field:
                found = compare(task, case, arguments, field)
                for into, part in zip((rows, lines, targets), found, strict=True):
                    into += part
                versions = field.versions
    with Field([], cache, arguments.threads) as field:
        gemm_case = {"dtype": "float64", "gemm_size": size}
        schedule = command_line.schedule(arguments)
        rate = 2 * size**3 / field.compete(gemm_case, {}, schedule, [gemm])["gemm"].median
        report = [
            f"# Sparse posterior against N, M = {arguments.inducing}",
            "",
            table.machine(field, {"float64": rate}),
            "",
            table.versions({"lingp": next(iter(versions.values()), {})}),
            "",
            *notes,
            "",
            table.markdown_table(_header(), rows),
            "",
            f"Medians in seconds; prior precision {PRECISION:g}, budget {arguments.budget:g} "
            f"MB, {arguments.points} test rows. Rise: of the resident set above that of a process "
            "with libraries and data, in MiB; data: the rows of x and y, which lingp copies; peak: "
            "the whole resident set.",
            "",
            *lines,
            *([] if arguments.quick else targets),
        ]
    command_line.publish("\n".join(report), arguments.output)


def _header() -> list[str]:
    return ["set", "case", "N", "total (s)", *PARTS, "rise (MiB)", "data (MiB)", "peak (MiB)"]


if __name__ == "__main__":
    main()
