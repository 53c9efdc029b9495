"""One process against several: the same posterior from data in shards, time and difference.

Each turn starts one process with all rows, then so many with a shard each (gloo, on this machine);
every process has the same number of threads. Timed, after a first run that only warms up: fit,
evidence with its gradient, predictions at 200 rows. Starting processes isn't counted.

    python benchmarks/distributed.py
    python benchmarks/distributed.py --processes 4 --threads 1
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import networks
import torch
import torch.distributed as dist
from harness import command_line, table

import lingp

METHODS: dict[str, Callable[[int], Any]] = {
    "weight space": lambda num_inducing: "weight_space",
    "sparse": lambda num_inducing: lingp.Sparse(num_inducing, select="greedy"),
}
SIZES = [8, 28, 28, 1]  # P = 1093


def work(method: str, num_rows: int, num_inducing: int) -> dict[str, Any]:
    """Seconds of fit, evidence with gradient, and predictions; and what came out of them."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = networks.mlp(SIZES).double()
    X = torch.randn(num_rows, SIZES[0], generator=generator, dtype=torch.float64)
    y = X.sin().mean(-1, keepdim=True) + 0.1 * torch.randn(num_rows, 1, generator=generator)
    rank, size = dist.get_rank(), dist.get_world_size()
    edges = [num_rows * i // size for i in range(size + 1)]
    own = slice(edges[rank], edges[rank + 1])
    seconds = {}

    def timed(name: str, act: Callable[[], Any]) -> Any:
        dist.barrier()
        start = time.perf_counter()
        result = act()
        dist.barrier()
        seconds[name] = time.perf_counter() - start
        return result

    def evidence() -> list[torch.Tensor]:
        value = gp.log_marginal_likelihood()
        free = [p for _, p in gp.named_hyperparameters()]
        return [value.detach(), *torch.autograd.grad(value, free)]

    gp = lingp.LinearizedGP(
        network,
        lingp.likelihoods.StudentT(scale=0.1),  # every row has its own curvature
        prior=10.0,
        inference=METHODS[method](num_inducing),
        process_group=dist.group.WORLD if size > 1 else None,
    )

    def fit() -> None:
        gp.fit(X[own], y[own], progress=False)
        gp.predict(X[:1], progress=False)  # makes the posterior

    timed("fit", fit)
    results = timed("evidence and gradient", evidence)
    prediction = timed("predict", lambda: gp.predict(X[:200], progress=False))
    values = torch.cat([r.reshape(-1) for r in [*results, prediction.epistemic_variance]])
    return {"seconds": seconds, "values": values.tolist()}


def worker(arguments: argparse.Namespace) -> None:
    """One rank: a warm-up, then the timed run; rank 0 writes what it found."""
    torch.set_num_threads(arguments.threads)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{arguments.meeting}",
        rank=arguments.rank,
        world_size=arguments.processes,
        timeout=datetime.timedelta(minutes=10),
    )
    found = {}
    for method in METHODS:
        work(method, min(1000, arguments.num_rows), min(50, arguments.num_inducing))
        found[method] = work(method, arguments.num_rows, arguments.num_inducing)
    if arguments.rank == 0:
        Path(arguments.found).write_text(json.dumps(found))
    dist.destroy_process_group()


def launch(size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """What rank 0 of so many processes found."""
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        flags = {
            "--processes": size,
            "--threads": arguments.threads,
            "--num-rows": arguments.num_rows,
            "--num-inducing": arguments.num_inducing,
            "--meeting": Path(folder) / "meeting",
            "--found": found,
        }
        command = [sys.executable, __file__, *(str(x) for pair in flags.items() for x in pair)]
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank)], env=environment)
            for rank in range(size)
        ]
        try:
            codes = [rank.wait() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(codes):
            raise SystemExit(f"a rank of {size} failed")
        return json.loads(found.read_text())


def report(turns: list[tuple[dict[str, Any], dict[str, Any]]], arguments: Any) -> str:
    """The table: medians over turns and their ratio."""
    rows = []
    for method in METHODS:
        one, many = ([turn[i][method] for turn in turns] for i in (0, 1))
        pairs = zip(one[0]["values"], many[0]["values"], strict=True)
        error = max(abs(a - b) / max(abs(a), 1e-300) for a, b in pairs)
        for name in one[0]["seconds"]:
            slow, fast = (median(run["seconds"][name] for run in runs) for runs in (one, many))
            times = table.milliseconds(slow), table.milliseconds(fast), table.factor(slow / fast)
            rows.append([method, name, *times, table.scientific(error)])
    header = ["method", "work", "1 process (ms)", f"{arguments.processes} processes (ms)"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return "\n".join(
        [
            "# One process and several",
            "",
            f"{table.processor()}, {cores} cores, {arguments.threads} threads per process; "
            f"N = {arguments.num_rows}, P = 1093, {arguments.num_inducing} inducing points, "
            f"float64; {len(turns)} turns; gloo; torch {torch.__version__}",
            "",
            table.markdown_table([*header, "ratio", "difference"], rows),
            "",
            "Difference: largest of evidence, gradient and variances, relative to each. Every rank "
            "predicts for itself, so that the time of predictions stays.",
        ]
    )


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--num-rows", type=int, default=20_000)
    parser.add_argument("--num-inducing", type=int, default=256)
    for hidden in ("--rank", "--meeting", "--found"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        arguments.rank = int(arguments.rank)
        worker(arguments)
        return
    if arguments.quick:
        arguments.num_rows, arguments.num_inducing = 200, 20
    turns = [
        (launch(1, arguments), launch(arguments.processes, arguments))
        for _ in range(arguments.turns or (1 if arguments.quick else 3))
    ]
    command_line.publish(report(turns, arguments), arguments.output)


if __name__ == "__main__":
    main()
