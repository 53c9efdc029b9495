"""Gram matrix K = J Jᵀ: lingp against explicit Jacobians and neural-tangents.

Every contender gets the same network with the same weights and the same inputs, in a process of its
own with the same number of threads, and does the whole work from inputs to matrix, forward and
backward passes included. Its matrix is compared with dense Jacobians in float64.

    python benchmarks/kernel.py                     # the full table
    python benchmarks/kernel.py --quick             # small sizes
    python benchmarks/kernel.py --only lingp        # no other environment needed
    python benchmarks/kernel.py --all               # neural-tangents' other implementations too
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import networks
import numpy as np
import peers
import torch
from harness import command_line, table
from harness.rounds import Contender, Field, Result, Schedule
from reference import jacobian, relative_error

OURS, EXPLICIT, STRUCTURED = "lingp", "torch.func", "neural-tangents"
CHECKED_EXAMPLES = 100  # the dense reference covers at most this many examples, drawn at random


@dataclass(frozen=True)
class Case:
    """A network and a number of examples."""

    name: str
    architecture: dict[str, Any]
    input_shape: tuple[int, ...]
    num_data: int

    @property
    def label(self) -> str:
        """As printed in the table."""
        return f"{self.name}, N = {self.num_data}"


def cases(quick: bool) -> list[Case]:
    """What is measured."""
    if quick:
        return [
            Case("MLP 8-16-16-3", {"kind": "mlp", "sizes": [8, 16, 16, 3]}, (8,), 20),
            Case("LeNet", {"kind": "lenet"}, (1, 28, 28), 4),
            Case("ResNet-8", {"kind": "resnet"}, (3, 32, 32), 2),
            Case("Transformer", {"kind": "transformer"}, (32, 64), 2),
        ]
    mlp = {"kind": "mlp", "sizes": [64, 256, 256, 256, 10]}
    wide = {"kind": "mlp", "sizes": [64, 512, 512, 512, 1]}
    return [
        Case("MLP 64-256-256-256-10", mlp, (64,), 100),
        Case("MLP 64-256-256-256-10", mlp, (64,), 300),
        Case("MLP 64-512-512-512-1", wide, (64,), 1000),
        Case("LeNet", {"kind": "lenet"}, (1, 28, 28), 50),
        Case("LeNet", {"kind": "lenet"}, (1, 28, 28), 200),
        Case("ResNet-8", {"kind": "resnet"}, (3, 32, 32), 32),
        Case("Transformer", {"kind": "transformer"}, (32, 64), 32),
    ]


def contenders(every: bool) -> list[Contender]:
    """Ours, explicit Jacobians, neural-tangents; with `every`, its other implementations."""
    found = [
        Contender(OURS, "contenders.gram_lingp"),
        Contender(EXPLICIT, "contenders.gram_torch_func"),
    ]
    implementations = ["STRUCTURED_DERIVATIVES"]
    if every:
        implementations += ["JACOBIAN_CONTRACTION", "NTK_VECTOR_PRODUCTS", "AUTO"]
    for implementation in implementations:
        name = STRUCTURED if len(found) == 2 else f"{STRUCTURED} {implementation}"
        found.append(
            Contender(
                name,
                "contenders.gram_neural_tangents",
                peers.NEURAL_TANGENTS,
                {"implementation": implementation},
            )
        )
    return found


def make_data(case: Case, dtype: str) -> tuple[torch.nn.Module, dict[str, np.ndarray]]:
    """The network, its weights as arrays, and random inputs of mean 0 and variance 1."""
    torch.manual_seed(0)
    network = networks.build(case.architecture)
    networks.randomise_statistics(network)
    network = network.to(getattr(torch, dtype))
    x = torch.randn(case.num_data, *case.input_shape).to(getattr(torch, dtype))
    return network, {**networks.weights(network), "x": x.numpy()}


def check(
    case: Case, network: torch.nn.Module, x: np.ndarray, results: dict[str, Result]
) -> dict[str, float]:
    """Relative error of each contender's matrix, on examples drawn from all over the batch."""
    count = min(case.num_data, CHECKED_EXAMPLES)
    chosen = np.sort(np.random.default_rng(0).permutation(case.num_data)[:count])
    dense = jacobian(network, torch.from_numpy(x[chosen])).flatten(0, 1).numpy()  # (N C x P)
    reference = dense @ dense.T
    outputs = dense.shape[0] // count
    rows = (chosen[:, None] * outputs + np.arange(outputs)).ravel()
    return {
        name: relative_error(result.arrays["gram"][np.ix_(rows, rows)], reference)
        for name, result in results.items()
        if not result.failure
    }


def rows_of(case: Case, results: dict[str, Result], errors: dict[str, float]) -> list[list[str]]:
    """The case's rows of the table."""
    base = results.get(OURS, Result()).median
    return [
        [
            case.label,
            name,
            *table.timing_cells(result),
            table.factor(result.median / base),
            table.mebibytes(result.peak),
            table.mebibytes(sum(result.kept.values()) or None),
            table.scientific(errors.get(name)),
        ]
        for name, result in results.items()
    ]


def summary(outcomes: list[tuple[Case, dict[str, Result]]]) -> list[str]:
    """The targets, each with what was measured."""

    def ratios(name: str) -> list[float]:
        pairs = [(r[name].median, r[OURS].median) for _, r in outcomes if {name, OURS} <= set(r)]
        return [theirs / ours for theirs, ours in pairs if not math.isnan(theirs / ours)]

    explicit, structured = ratios(EXPLICIT), ratios(STRUCTURED)
    lines = []
    if explicit:
        first = outcomes[0][0].label
        lines.append(table.verdict(f"{EXPLICIT} / {OURS}, {first}", explicit[0], 30))
        lines.append(table.verdict(f"{EXPLICIT} / {OURS}, smallest", min(explicit), 1))
    if structured:
        mean = math.exp(sum(map(math.log, structured)) / len(structured))
        count = f"{len(structured)} of {len(outcomes)} cases"
        lines.append(
            table.verdict(f"{STRUCTURED} / {OURS}, smallest of {count}", min(structured), 1)
        )
        lines.append(table.verdict(f"{STRUCTURED} / {OURS}, geometric mean of {count}", mean, 1.5))
    memory = [
        r[OURS].peak / sum(r[OURS].kept.values())
        for _, r in outcomes
        if OURS in r and r[OURS].peak is not None and not r[OURS].failure
    ]
    if memory:
        what = f"{OURS} peak memory / (result + factors), largest"
        lines.append(table.verdict(what, max(memory), 1.3, at_most=True))
    return lines


def gemm_rate(field: Field, dtype: str, quick: bool, schedule: Schedule) -> float:
    """FLOP/s of a large square product on this machine, now."""
    size = 512 if quick else 4096
    contender = Contender("gemm", "contenders.gemm", timed_only=True)
    case = {"dtype": dtype, "gemm_size": size}
    result = field.compete(case, {}, schedule, [contender])["gemm"]
    return 2 * size**3 / result.median


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--all", action="store_true", help="all implementations of neural-tangents")
    parser.add_argument("--case", metavar="TEXT", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    schedule = command_line.schedule(arguments)
    torch.set_num_threads(arguments.threads)

    rows: list[list[str]] = []
    notes: list[str] = []
    outcomes: list[tuple[Case, dict[str, Result]]] = []
    chosen = command_line.chosen(contenders(arguments.all), arguments)
    with Field(chosen, command_line.cache(arguments), arguments.threads) as field:
        rate = gemm_rate(field, arguments.dtype, arguments.quick, schedule)
        for case in cases(arguments.quick):
            if arguments.case not in case.name:
                continue
            network, data = make_data(case, arguments.dtype)
            shared = {"architecture": case.architecture, "dtype": arguments.dtype}
            results = field.compete(shared, data, schedule)
            errors = check(case, network, data["x"], results)
            rows += rows_of(case, results, errors)
            notes += table.failures(results, case.label)
            outcomes.append((case, results))
        versions = field.versions

    header = [
        f"Gram matrix, {arguments.dtype}",
        "contender",
        "median (ms)",
        "range (ms)",
        "runs",
        "time / lingp",
        "peak (MiB)",
        "kept (MiB)",
        "error",
    ]
    report = [
        "# Gram matrix",
        "",
        table.machine(field, {arguments.dtype: rate}),
        "",
        table.versions(versions),
        "",
        table.markdown_table(header, rows),
        "",
        "Peak: rise of the process's resident set during one run. Kept: the matrix, and for lingp "
        "the layer factors.",
        "Error: Frobenius norm relative to dense Jacobians in float64, on up to "
        f"{CHECKED_EXAMPLES} examples.",
        "",
        *notes,
        *([] if arguments.quick else summary(outcomes)),
    ]
    command_line.publish("\n".join(report), arguments.output)


if __name__ == "__main__":
    main()
