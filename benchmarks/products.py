"""Products with the kernel: lingp from cached layer factors against automatic differentiation.

The work is J (Jᵀ V) with 16 right-hand sides: 4 N P flops each, counted from the layers' sizes. It
is measured in forward passes of the same batch and against this machine's rate for a large square
matrix product, both timed in the same rounds. curvlinops multiplies with the GGN, Jᵀ (J W): the
same flops in the other order; lingp's time for that order is in the table too. lingp's kernel
operator may instead form the matrix; its first product and a later one are rows of their own.

    python benchmarks/products.py                   # the full table, float32 and float64
    python benchmarks/products.py --quick           # small sizes
    python benchmarks/products.py --only lingp      # no other environment needed
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import networks
import numpy as np
import peers
import torch
from harness import command_line, table
from harness.rounds import Contender, Field, Result
from reference import jacobian, relative_error

OURS, OURS_GGN = "lingp", "lingp GGN"
FIRST, LATER = "lingp operator first", "lingp operator later"
FORWARD, GEMM = "forward pass", "large GEMM"
VMAP, LOOP = "jvp∘vjp vmap", "jvp∘vjp loop"
CURVLINOPS = "curvlinops GGN"
REFERENCE_ROWS = 500  # examples whose dense Jacobian is in memory at a time


def contenders() -> list[Contender]:
    """Ours in both orders, what they are measured in, and the peers."""
    ours, automatic = "contenders.product_lingp", "contenders.product_torch_func"
    return [
        Contender(OURS, ours, options={"way": "factors"}),
        Contender(OURS_GGN, ours, options={"way": "ggn"}),
        Contender(FIRST, ours, options={"way": "first"}),
        Contender(LATER, ours, options={"way": "later"}),
        Contender(FORWARD, "contenders.forward", timed_only=True),
        Contender(GEMM, "contenders.gemm", timed_only=True),
        Contender(VMAP, automatic, options={"how": "vmap"}),
        Contender(LOOP, automatic, options={"how": "loop"}),
        Contender(CURVLINOPS, "contenders.product_curvlinops", peers.CURVLINOPS),
    ]


def references(network: torch.nn.Module, data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """J Jᵀ V and Jᵀ J W in float64, from dense Jacobians of a few hundred examples at a time."""
    x = torch.from_numpy(data["x"])
    v, w = (torch.from_numpy(data[side]).double() for side in ("ntk", "ggn"))
    pieces = [slice(i, min(i + REFERENCE_ROWS, len(x))) for i in range(0, len(x), REFERENCE_ROWS)]
    outputs = len(v) // len(x)
    pulled, ggn = torch.zeros_like(w), torch.zeros_like(w)
    for piece in pieces:
        dense = jacobian(network, x[piece]).flatten(0, 1)
        pulled += dense.T @ v[piece.start * outputs : piece.stop * outputs]
        ggn += dense.T @ (dense @ w)
    kernel = [jacobian(network, x[piece]).flatten(0, 1) @ pulled for piece in pieces]
    return {"ntk": torch.cat(kernel).numpy(), "ggn": ggn.numpy()}


@dataclass(frozen=True)
class Case:
    """One dtype of the work."""

    dtype: str
    sizes: list[int]
    num_data: int
    columns: int
    gemm_size: int
    activation: str

    @property
    def architecture(self) -> dict[str, Any]:
        """For `networks.build`."""
        return {"kind": "mlp", "sizes": self.sizes, "activation": self.activation}

    def make(self) -> tuple[torch.nn.Module, dict[str, np.ndarray]]:
        """The network; its weights, inputs and the right-hand sides of both orders."""
        torch.manual_seed(0)
        dtype = getattr(torch, self.dtype)
        network = networks.build(self.architecture).to(dtype)
        parameters = sum(p.numel() for p in network.parameters())
        rows = {"x": (self.num_data, self.sizes[0])}
        rows["ntk"] = (self.num_data * self.sizes[-1], self.columns)
        rows["ggn"] = (parameters, self.columns)
        data = {name: torch.randn(shape).to(dtype).numpy() for name, shape in rows.items()}
        return network, {**networks.weights(network), **data}

    def flops(self, name: str) -> float:
        """Multiplications and additions, biases included, activations left out.

        nan for the operator, which may go through the matrix instead: it has another count.
        """
        if name in (FIRST, LATER):
            return float("nan")
        if name == GEMM:
            return 2 * self.gemm_size**3
        parameters = sum((i + 1) * o for i, o in itertools.pairwise(self.sizes))
        per_pass = 2 * self.num_data * parameters
        return per_pass if name == FORWARD else 2 * per_pass * self.columns


def rows_of(
    case: Case, results: dict[str, Result], references: dict[str, np.ndarray]
) -> list[list[str]]:
    """The case's rows of the table."""
    medians = defaultdict(lambda: float("nan"), {n: r.median for n, r in results.items()})
    gemm_rate = case.flops(GEMM) / medians[GEMM]
    rows = []
    for name, result in results.items():
        product = result.arrays.get("product")
        wanted = references["ggn" if "GGN" in name else "ntk"]
        passes = result.median / case.columns / medians[FORWARD]
        rate = case.flops(name) / result.median
        timed_only = name in (FORWARD, GEMM)
        rows.append(
            [
                case.dtype,
                name,
                *table.timing_cells(result),
                "–" if timed_only else table.factor(passes),
                table.gigaflops(rate),
                table.percent(rate / gemm_rate),
                "–" if timed_only else table.factor(result.median / medians[OURS]),
                table.mebibytes(result.peak),
                table.scientific(None if product is None else relative_error(product, wanted)),
            ]
        )
    return rows


def targets(case: Case, results: dict[str, Result]) -> list[str]:
    """The targets, each with what was measured."""
    medians = defaultdict(lambda: float("nan"), {n: r.median for n, r in results.items()})
    ours, dtype = medians[OURS], case.dtype
    passes = ours / case.columns / medians[FORWARD]
    gemm_rate = case.flops(GEMM) / medians[GEMM]
    share = 100 * case.flops(OURS) / ours / gemm_rate
    automatic = min(medians[VMAP], medians[LOOP])
    peer = medians[CURVLINOPS]
    return [
        table.verdict(f"{dtype}: forward passes per rhs", passes, 1.3, at_most=True, unit=""),
        table.verdict(f"{dtype}: share of the GEMM rate", share, 60, unit=" %"),
        table.verdict(f"{dtype}: the faster jvp∘vjp / {OURS}", automatic / ours, 4),
        table.verdict(f"{dtype}: {CURVLINOPS} / {OURS}", peer / ours, 4),
        table.verdict(f"{dtype}: {CURVLINOPS} / {OURS_GGN}", peer / medians[OURS_GGN], 4),
    ]


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--dtype", choices=["float32", "float64", "both"], default="both")
    parser.add_argument("--activation", choices=sorted(networks.ACTIVATIONS), default="relu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    size = {"sizes": [64, 256, 256, 256, 1], "num_data": 5000, "columns": 16, "gemm_size": 4096}
    if arguments.quick:
        size = {"sizes": [8, 16, 16, 1], "num_data": 50, "columns": 4, "gemm_size": 512}
    dtypes = ["float32", "float64"] if arguments.dtype == "both" else [arguments.dtype]

    rows: list[list[str]] = []
    notes: list[str] = []
    rates: dict[str, float] = {}
    chosen = command_line.chosen(contenders(), arguments)
    with Field(chosen, command_line.cache(arguments), arguments.threads) as field:
        for dtype in dtypes:
            case = Case(dtype, activation=arguments.activation, **size)
            network, data = case.make()
            shared = {
                "architecture": case.architecture,
                "dtype": dtype,
                "gemm_size": case.gemm_size,
            }
            results = field.compete(shared, data, command_line.schedule(arguments))
            rows += rows_of(case, results, references(network, data))
            notes += table.failures(results, dtype)
            notes += [] if arguments.quick else targets(case, results)
            if GEMM in results:
                rates[dtype] = case.flops(GEMM) / results[GEMM].median
        versions = field.versions

    layers = "-".join(map(str, case.sizes))
    header = [
        "dtype",
        "contender",
        "median (ms)",
        "range (ms)",
        "runs",
        "forward passes / rhs",
        "GFLOP/s",
        "of GEMM",
        f"time / {OURS}",
        "peak (MiB)",
        "error",
    ]
    report = [
        f"# Products with {case.columns} right-hand sides",
        "",
        f"MLP {layers} with {case.activation}, N = {case.num_data}.",
        "",
        table.machine(field, rates),
        "",
        table.versions(versions),
        "",
        table.markdown_table(header, rows),
        "",
        "GFLOP/s count 4 N P per right-hand side for a product, 2 N P for a forward pass. The "
        "operator may form the kernel matrix, which then serves its later products.",
        "Peak: rise of the process's resident set during one product; lingp's factors and every "
        "contender's right-hand sides were there before.",
        "Error: Frobenius norm relative to dense Jacobians in float64. With ReLU in float32, a "
        "unit within rounding of zero may be on here and off there, for every contender alike.",
        "",
        *notes,
    ]
    command_line.publish("\n".join(report), arguments.output)


if __name__ == "__main__":
    main()
