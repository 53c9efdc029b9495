"""Jᵀ Λ J and the blocks J_n S J_nᵀ by layers, beside products of the Jacobian's columns.

Networks of two hidden layers of 50, float64, in the sizes of data sets: one output or a softmax.
By columns, Φ = Rᵀ J is written out in pieces of 128 MiB; one half of Φᵀ Φ is computed. For the
blocks, J S is multiplied out, half of what a triangular solve takes. Ways take turns; medians.

    python benchmarks/weight_gram.py
    python benchmarks/weight_gram.py --quick        # small sizes
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from harness import command_line, table
from torch import Tensor, nn

from lingp.linearization import Factors, LinearizedNetwork
from lingp.operators import RowBlocks, WeightGram

# inputs, outputs and rows, as of data sets
SIZES = {"banana": (2, 1, 4505), "vehicle": (18, 4, 719), "digits": (64, 10, 1527)}
SIZES["satellite"] = (36, 6, 5470)
QUICK = {"small": (3, 3, 20)}
HIDDEN = 50
PIECE_BYTES, PANELS, TURNS = 1 << 27, 4, 3


def factors_of(num_inputs: int, num_outputs: int, num_data: int) -> Factors:
    torch.manual_seed(0)
    hidden = (nn.Linear(num_inputs, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU())
    net = nn.Sequential(*hidden, nn.Linear(HIDDEN, num_outputs)).double()
    x = torch.randn(num_data, num_inputs, dtype=torch.float64)
    return LinearizedNetwork(net).factors(x)[1]


def pieces(factors: Factors) -> Iterator[tuple[slice, Tensor]]:
    """Rows of J, dense, (n x C x P)."""
    step = max(1, PIECE_BYTES // (8 * factors.num_outputs * factors.num_parameters))
    for start in range(0, factors.num_data, step):
        rows = slice(start, min(start + step, factors.num_data))
        yield rows, factors.rows(rows).jacobian()


def gram_by_columns(factors: Factors, root: Tensor) -> Tensor:
    size = factors.num_parameters
    total = root.new_zeros(size, size)
    width = -(-size // PANELS)
    for rows, jacobian in pieces(factors):
        phi = (root[rows].mT @ jacobian).flatten(0, 1)
        for i in range(0, size, width):
            total[i:, i : i + width].addmm_(phi[:, i:].mT, phi[:, i : i + width])
    return total.tril() + total.tril(-1).mT


def gram_by_layers(factors: Factors, root: Tensor) -> Tensor:
    total = WeightGram(factors.num_parameters)
    total.add(factors, root @ root.mT)
    return total.pop(like=root)


def blocks_by_columns(factors: Factors, matrix: Tensor) -> Tensor:
    return torch.cat([(jacobian @ matrix) @ jacobian.mT for _, jacobian in pieces(factors)])


def blocks_by_layers(factors: Factors, matrix: Tensor) -> Tensor:
    return RowBlocks(matrix).of(factors)


def timed(ways: list[Callable[[], Tensor]], turns: int) -> tuple[list[float], float]:
    """Median seconds of each, and the relative difference of their results."""
    seconds: list[list[float]] = [[] for _ in ways]
    results: list[Tensor] = []
    for turn in range(turns):
        for way, spent in zip(ways, seconds, strict=True):
            start = time.perf_counter()
            found = way()
            spent.append(time.perf_counter() - start)
            if turn == 0:
                results.append(found)
    first, second = results
    return [statistics.median(s) for s in seconds], float((first - second).norm() / first.norm())


@torch.no_grad()
def rows(name: str, sizes: tuple[int, int, int], turns: int) -> list[list[str]]:
    """One row of the table for each of the two operations."""
    factors = factors_of(*sizes)
    root = torch.randn(factors.num_data, *2 * (factors.num_outputs,), dtype=torch.float64)
    matrix = gram_by_layers(factors, root)
    works = {
        "Jᵀ Λ J": [lambda w=w: w(factors, root) for w in (gram_by_columns, gram_by_layers)],
        "J_n S J_nᵀ": [
            lambda w=w: w(factors, matrix) for w in (blocks_by_columns, blocks_by_layers)
        ],
    }
    found = []
    for work, ways in works.items():
        (columns, layers), difference = timed(ways, turns)
        case = f"{name}: N·C = {sizes[2]}·{sizes[1]}, P = {factors.num_parameters}"
        ratio = table.factor(columns / layers)
        found.append(
            [case, work, f"{columns:.2f}", f"{layers:.2f}", ratio, table.scientific(difference)]
        )
    return found


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cells = []
    for name, sizes in (QUICK if arguments.quick else SIZES).items():
        cells += rows(name, sizes, arguments.turns or TURNS)
    header = ["sizes", "", "by columns (s)", "by layers (s)", "ratio", "difference"]
    machine = f"{table.processor()}, {arguments.threads} threads, torch {torch.__version__}"
    command_line.publish(f"{machine}\n\n{table.markdown_table(header, cells)}", arguments.output)


if __name__ == "__main__":
    main()
