"""lingp on a GPU against the same machine's CPU: time, memory and the largest difference.

For each network: the kernel of N inputs, then a whole posterior (fit, evidence with its gradient,
predictions at as many rows) in the space that "auto" chooses.

    python benchmarks/device.py            # needs CUDA
    python benchmarks/device.py --quick    # small sizes, on whatever device there is
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks
import torch
from harness import command_line, table
from torch import Tensor, nn

import lingp
from lingp.operators import gram

CASES: list[tuple[str, dict[str, Any], int]] = [
    ("MLP 64-512-512-10", {"kind": "mlp", "sizes": [64, 512, 512, 10]}, 500),
    ("MLP 8-50-50-1", {"kind": "mlp", "sizes": [8, 50, 50, 1]}, 8000),
    ("LeNet", {"kind": "lenet"}, 400),
    ("ResNet-8", {"kind": "resnet"}, 64),
]
SHAPES = {"lenet": (1, 28, 28), "resnet": (3, 32, 32)}


Data = tuple[Tensor, Tensor]
Row = list[str]
Work = Callable[[nn.Module, Tensor, Tensor, torch.dtype], list[Tensor]]


def timed(work: Callable[[], list[Tensor]], turns: int) -> tuple[list[Tensor], float]:
    """What the work gives, and its median time in seconds; the first run only warms up."""
    results, times = work(), []
    for _ in range(turns):
        _wait()
        start = time.perf_counter()
        results = work()
        _wait()
        times.append(time.perf_counter() - start)
    return results, statistics.median(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def kernel(network: nn.Module, x: Tensor, y: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The N·C x N·C kernel, from the network on."""
    return [gram(lingp.LinearizedNetwork(network, dtype=dtype).factors(x)[1])]


def posterior(network: nn.Module, x: Tensor, y: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Evidence, its gradient, predictive mean and variance at the training inputs."""
    gp = lingp.LinearizedGP(network, "gaussian", prior=10.0, dtype=dtype)
    gp.fit(x, y, progress=False)
    evidence = gp.log_marginal_likelihood()
    gradients = torch.autograd.grad(evidence, [p for _, p in gp.named_hyperparameters()])
    prediction = gp.predict(x, progress=False)
    return [evidence.detach(), *gradients, prediction.mean, prediction.variance]


# the factorisation of thousands of rows is beyond float32, see docs/design-decisions.md
WORKS = [(kernel, torch.float32), (kernel, torch.float64), (posterior, torch.float64)]


def compare(work: Work, network: nn.Module, data: Data, dtype: torch.dtype, turns: int) -> Row:
    """One line of the table: the work on the CPU and on the device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    moved, there = copy.deepcopy(network).to(device), tuple(t.to(device) for t in data)
    expected, slow = timed(lambda: work(network, *data, dtype), turns)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    found, fast = timed(lambda: work(moved, *there, dtype), turns)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    error = max(
        float((a.cpu().double() - b.double()).abs().max() / b.abs().max())
        for a, b in zip(found, expected, strict=True)
    )
    return [
        str(dtype).removeprefix("torch."),
        work.__name__,
        table.milliseconds(slow),
        table.milliseconds(fast),
        table.factor(slow / fast),
        table.mebibytes(peak),
        table.scientific(error),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, on any device")
    parser.add_argument("--output", type=Path, help="write the report to this file too")
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    if not (cuda or arguments.quick):
        raise SystemExit("no CUDA device; --quick shows on the CPU that everything runs")
    rows = []
    for name, architecture, num_data in CASES:
        size = min(8, num_data) if arguments.quick else num_data
        torch.manual_seed(0)
        network = networks.build(architecture)
        inputs = SHAPES.get(architecture["kind"], (architecture.get("sizes", [0])[0],))
        x = torch.randn(size, *inputs)
        y = network(x).detach() + 0.1 * torch.randn(size, 1)
        for work, dtype in WORKS:
            row = compare(work, network, (x, y), dtype, 1 if arguments.quick else 3)
            rows.append([name, str(size), *row])
            print(*rows[-1], flush=True)
    header = [
        "network",
        "N",
        "dtype",
        "work",
        "CPU (ms)",
        "GPU (ms)",
        "CPU / GPU",
        "GPU peak (MiB)",
    ]
    where = torch.cuda.get_device_name() if cuda else "no GPU"
    report = [
        "# lingp on a GPU",
        "",
        f"{where}; {torch.get_num_threads()} CPU threads; torch {torch.__version__}",
        "",
        table.markdown_table([*header, "difference"], rows),
        "",
        "Difference: largest over all results, relative to the largest value of each.",
    ]
    command_line.publish("\n".join(report), arguments.output)


if __name__ == "__main__":
    main()
