"""Architecture choice: does the network of largest evidence predict best.

Candidates are all depths, widths and activations of `DEPTHS`, `WIDTHS` and `ACTIVATIONS`, each
trained with the evidence on the same rows from one random start per split: no validation rows, no
test rows. Test log-likelihood is in the units of the data (nats per row; of class labels for sets
of classes). Over splits both are averaged, the evidence per training row.

Besides rank correlations the report has what the choice is worth: the test log-likelihood of the
candidate of largest evidence on each split, beside the candidate that is best on the test rows
(which nobody knows), the mean candidate, and the usual network of 1 x 50 or 2 x 50 units. And it
shows where evidence and test disagree most.

    python benchmarks/architectures.py --output architectures.md --plot architectures.png
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import networks
import torch
from harness import command_line, table
from scipy.stats import kendalltau, rankdata, spearmanr
from torch import nn

from lingp.comparison import compare_by_evidence

REGRESSION = ("boston", "concrete", "yacht", "energy", "wine")
CLASSES = ("glass", "vehicle", "waveform")
DEFAULT_SETS = "boston,concrete,yacht"
DEPTHS, WIDTHS, ACTIVATIONS = (1, 2, 3), (5, 20, 50, 100), ("tanh", "gelu", "relu")
USUAL = {"boston": "1 x 50 gelu", "wine": "1 x 50 gelu"}
STEPS, UPDATES = 400, 5
QUICK = {"sets": "yacht", "splits": "0:1", "depths": (1,), "widths": (8,), "steps": 30}
_COLOURS = {"tanh": "#0072B2", "gelu": "#D55E00", "relu": "#009E73", "linear": "#000000"}
_MARKERS = {0: "X", 1: "o", 2: "s", 3: "^"}

Records = dict[str, dict[int, dict[str, dict[str, Any]]]]  # set, split, candidate


def candidates(
    inputs: int, outputs: int, depths: tuple[int, ...], widths: tuple[int, ...]
) -> dict[str, Callable[[], nn.Module]]:
    """The linear model and every combination, by name."""

    def build(depth: int, width: int, activation: str) -> nn.Module:
        return networks.mlp([inputs, *[width] * depth, outputs], activation).double()

    made: dict[str, Callable[[], nn.Module]] = {"linear": partial(build, 0, 0, "gelu")}
    for depth in depths:
        for width in widths:
            for activation in ACTIVATIONS:
                name = f"{depth} x {width} {activation}"
                made[name] = partial(build, depth, width, activation)
    return made


def run_split(
    where: Path, name: str, index: int, depths: tuple[int, ...], widths: tuple[int, ...], steps: int
) -> dict[str, dict[str, Any]]:
    """Evidence per row, test log-likelihood per row and the rest of every candidate."""
    classes = name in CLASSES
    split = (datasets.classification if classes else datasets.regression)(where, name, index)
    x, y = torch.from_numpy(split.train.x), torch.from_numpy(split.train.y)
    found = compare_by_evidence(
        candidates(x.shape[1], split.num_classes if classes else 1, depths, widths),
        x,
        y,
        likelihood="categorical" if classes else "gaussian",
        X_test=torch.from_numpy(split.test.x),
        y_test=torch.from_numpy(split.test.y),
        generator=torch.Generator().manual_seed(index),
        steps=steps,
        updates=UPDATES,
        progress=False,
    )
    made: dict[str, dict[str, Any]] = {}
    for candidate in found.candidates:
        run = candidate.best_run
        made[candidate.name] = {"failure": candidate.failure or candidate.runs[0].stopped}
        if run is not None and run.test_log_likelihood is not None:
            made[candidate.name] |= {
                "evidence": run.evidence / run.num_data,
                "test": run.test_log_likelihood - math.log(split.target_std),
                "gamma": run.effective_parameters,
                "parameters": run.num_parameters,
                "seconds": run.seconds,
            }
    return made


def average(splits: dict[int, dict[str, dict[str, Any]]], key: str) -> dict[str, float]:
    """Of the candidates that have a value on every split."""
    names = next(iter(splits.values()))
    values = {name: [s[name].get(key) for s in splits.values()] for name in names}
    return {n: statistics.mean(v) for n, v in values.items() if None not in v}


def ranks(values: dict[str, float]) -> dict[str, int]:
    """1 for the largest."""
    found = rankdata([-v for v in values.values()], method="min")
    return {name: int(rank) for name, rank in zip(values, found, strict=True)}


def candidate_table(splits: dict[int, dict[str, dict[str, Any]]]) -> str:
    """Every candidate, by mean evidence."""
    evidence, test = average(splits, "evidence"), average(splits, "test")
    gamma, seconds = average(splits, "gamma"), average(splits, "seconds")
    by_evidence, by_test = ranks(evidence), ranks(test)
    rows = [
        [
            name,
            f"{evidence[name]:.3f}",
            f"{by_evidence[name]}",
            f"{test[name]:.3f}",
            f"{by_test[name]}",
            f"{gamma[name]:.0f}",
            f"{next(iter(splits.values()))[name]['parameters']}",
            f"{seconds[name]:.1f}",
        ]
        for name in sorted(evidence, key=evidence.__getitem__, reverse=True)
    ]
    header = ["candidate", "evidence / N", "rank", "test LL", "rank", "γ", "P", "s"]
    return table.markdown_table(header, rows)


def choice(name: str, splits: dict[int, dict[str, dict[str, Any]]]) -> list[str]:
    """One row: rank correlations, and what was chosen, best, mean and usual."""
    rho, chosen, best, mean, usual = [], [], [], [], []
    for found in splits.values():
        fine = [f for f in found.values() if "test" in f]
        evidence, test = [f["evidence"] for f in fine], [f["test"] for f in fine]
        rho.append(float(spearmanr(evidence, test).statistic))
        chosen.append(max(fine, key=lambda f: f["evidence"])["test"])
        best.append(max(test))
        mean.append(statistics.mean(test))
        usual.append(found.get(USUAL.get(name, "2 x 50 gelu"), {}).get("test", math.nan))
    evidence, test = average(splits, "evidence"), average(splits, "test")
    pairs = [(evidence[n], test[n]) for n in evidence if n in test]
    columns = list(zip(*pairs, strict=True))
    cells = [f"{statistics.mean(v):.3f}" for v in (chosen, best, mean, usual)]
    return [
        name,
        f"{len(splits)}",
        f"{spearmanr(*columns).statistic:.2f}",
        f"{kendalltau(*columns).statistic:.2f}",
        ", ".join(f"{r:.2f}" for r in rho),
        *cells,
    ]


def disagreements(splits: dict[int, dict[str, dict[str, Any]]], number: int = 3) -> list[str]:
    """Candidates whose two ranks differ most, and those that failed."""
    evidence, test = average(splits, "evidence"), average(splits, "test")
    by_evidence, by_test = ranks(evidence), ranks(test)
    worst = sorted(evidence, key=lambda n: -abs(by_evidence[n] - by_test[n]))[:number]
    lines = [f"- {n}: rank {by_evidence[n]} by evidence, {by_test[n]} by test" for n in worst]
    for index, found in splits.items():
        failed = {n: f["failure"] for n, f in found.items() if f["failure"]}
        lines += [f"- split {index}, {n} failed: {why}" for n, why in failed.items()]
    return lines


def draw(records: Records, path: Path) -> None:
    """Evidence against test log-likelihood, one panel per set."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    figure, axes = plt.subplots(
        1, len(records), figsize=(4.2 * len(records), 4.0), layout="constrained", squeeze=False
    )
    for ax, (name, splits) in zip(axes[0], records.items(), strict=True):
        evidence, test = average(splits, "evidence"), average(splits, "test")
        for candidate, value in evidence.items():
            depth, width, activation = described(candidate)
            size = 3.0 + 1.6 * math.log1p(width / 5)
            ax.plot(
                value,
                test[candidate],
                marker=_MARKERS.get(depth, "P"),
                markersize=size,
                color=_COLOURS[activation],
                markerfacecolor="none" if depth else _COLOURS[activation],
                linestyle="none",
            )
        ax.set_title(f"{name}: Spearman {choice(name, splits)[2]}")
        ax.set_xlabel("log evidence per training row (nats)")
        ax.grid(True, alpha=0.25, linewidth=0.6)
    axes[0][0].set_ylabel("test log-likelihood per row (nats)")
    marks = [
        Line2D([], [], marker="o", linestyle="none", color=c, label=a) for a, c in _COLOURS.items()
    ]
    marks += [
        Line2D([], [], marker=m, linestyle="none", color="#555555", label=f"{d} hidden")
        for d, m in _MARKERS.items()
        if d
    ]
    axes[0][-1].legend(handles=marks, fontsize="small", frameon=False, title="size: width")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def described(candidate: str) -> tuple[int, int, str]:
    """Depth, width and activation of a name."""
    if candidate == "linear":
        return 0, 0, "linear"
    depth, _, width, activation = candidate.split()
    return int(depth), int(width), activation


def report(records: Records, steps: int, seconds: float) -> str:
    """The whole report."""
    header = ["set", "splits", "Spearman", "Kendall", "Spearman on each split"]
    header += ["chosen by evidence", "best on test", "mean", "usual"]
    rows = [choice(name, splits) for name, splits in records.items()]
    sections = [
        "# Architecture choice by evidence",
        f"{table.processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}; "
        f"{steps} steps, {UPDATES} hyperparameter steps. All: {seconds:.0f} s.",
        "Rank correlations of evidence and test log-likelihood, both averaged over splits; test "
        "log-likelihood of the candidate that each rule chooses:",
        table.markdown_table(header, rows),
    ]
    for name, splits in records.items():
        sections += [f"## {name}", candidate_table(splits), "Ranks that differ most:"]
        sections.append("\n".join(disagreements(splits)))
    return "\n\n".join(sections)


def _numbers(given: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in given.split(",")) if given else ()


def main() -> None:
    parser = command_line.parser(__doc__)
    datasets.add_flags(parser, splits="0:2")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--depths", metavar="N,...", help="numbers of hidden layers")
    parser.add_argument("--widths", metavar="N,...", help="units of each")
    parser.add_argument("--raw", type=Path, help="write every number to this JSON file")
    parser.add_argument("--plot", type=Path, help="draw this image (needs matplotlib)")
    parser.set_defaults(threads=1, sets=DEFAULT_SETS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    depths = _numbers(arguments.depths) or DEPTHS
    widths = _numbers(arguments.widths) or WIDTHS
    if arguments.quick:
        depths, widths = QUICK["depths"], QUICK["widths"]
        arguments.sets, arguments.splits = QUICK["sets"], QUICK["splits"]
        arguments.steps = QUICK["steps"]
    where, start = datasets.folder(arguments.data), time.perf_counter()
    records: Records = {}
    for name in datasets.chosen_sets((*REGRESSION, *CLASSES), arguments):
        for index in datasets.chosen_splits(arguments):
            found = run_split(where, name, index, depths, widths, arguments.steps)
            records.setdefault(name, {})[index] = found
            if arguments.raw is not None:  # at once: a run that is cut short leaves something
                arguments.raw.parent.mkdir(parents=True, exist_ok=True)
                arguments.raw.write_text(json.dumps(records, indent=1) + "\n")
    if arguments.plot is not None:
        draw(records, arguments.plot)
    made = report(records, arguments.steps, time.perf_counter() - start)
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()
