"""Sparse posteriors against the number of inducing points: lingp's rules, ELLA and VaLLA.

One network per set, the same for everyone, in float64: kin8nm (one output; layers 8-50-50-1, GELU)
and digits (ten classes; 64-50-50-10, tanh), trained by full-batch Adam with a prior of precision 1.
Prior precision and noise are those of lingp's exact evidence, the same for everyone; the mean is
the network's output for everyone, so methods differ in covariances alone.

    lingp greedy, kmeans++, random     LinearizedGP(..., inference=Sparse(M, rule)): M inputs, all
                                       C outputs of each, M·C features (or as many as there are
                                       directions)
    lingp pairs                        Sparse(M, "greedy", points="pairs"): M features
    lingp prior                        Sparse(M, "greedy", complement="prior"): the prior's variance
                                       outside of the inducing points' span, as in Titsias' bound
    ELLA                               M features from M training rows (one random output each)
    ELLA 2000                          the M leading directions of 2000 rows (or all)
    VaLLA, VaLLA 0.1                   M inducing inputs, optimised by Adam at its default rate of
                                       1e-3, or at 0.1: ``--steps`` steps, or as many as fit in
                                       ``--budget`` seconds

What is measured against lingp's exact posterior:

    error      |S - S*| / |S*| (Frobenius) of each test row's latent covariance: median and largest
               (a variance of zero has error 1)
    ratio      tr S / tr S*, median over test rows: above 1 is too wide, below 1 too sure
    NLL        of the test targets; classes by the mean of softmax over 2048 draws of N(f, S)
    far        tr S / tr S* at inputs 10 to 20 times as far out as the farthest training input
    s          fit and test predictions, one run after a small warm-up

Rules that draw are run for ``--seeds`` seeds, and the median over seeds is printed; greedy rules
and VaLLA run once.

    python benchmarks/sparse.py --output sparse.md --plot sparse.png --raw sparse.json
    python benchmarks/sparse.py --only lingp --add sparse.json --plot sparse.png   # peers as before
    python benchmarks/sparse.py --quick     # seconds
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import networks
import numpy as np
import peers
import scores
import torch
from harness import command_line, table
from harness.rounds import Contender, Field, Result, Schedule
from sparse_report import EXACT, MAP, OURS, Record, joined, plot, result_table, settings, verdicts
from torch import nn
from training import train

SETS = ("kin8nm", "digits")
SIZES = {"kin8nm": (16, 32, 64, 128, 256, 512, 1024, 2048), "digits": (16, 32, 64, 128, 256, 512)}
QUICK_SIZES = (4, 8)
STEPS, QUICK_STEPS = 1000, 100
VALLA_STEPS, VALLA_SECONDS = 2000, 30.0
MOST_FEATURES, MOST_VALLA = 3000, 512  # beyond them a fit, or a step of VaLLA, takes minutes
FAR = (10.0, 20.0)
NUM_FAR = 100
_START = {"precision": 1.0, "noise": 0.1}
_SECONDS = 3600.0

_SPARSE, _PEER = "contenders.sparse_lingp", "contenders.sparse_laplace"


def contenders(steps: int, seconds: float) -> list[Contender]:
    """lingp's rules, ELLA and VaLLA."""
    made = [
        Contender(f"{OURS} {rule}", _SPARSE, options={"select": rule, "points": "inputs"})
        for rule in ("greedy", "kmeans++", "random")
    ]
    made.append(
        Contender(f"{OURS} pairs", _SPARSE, options={"select": "greedy", "points": "pairs"})
    )
    made.append(
        Contender(
            f"{OURS} prior",
            _SPARSE,
            options={"select": "greedy", "points": "inputs", "complement": "prior"},
        )
    )
    for name, subsample in (("ELLA", 0), ("ELLA 2000", 2000)):
        options = {"method": "ella", "subsample": subsample}
        made.append(Contender(name, _PEER, peers.LAPLACE, options))
    for name, rate in (("VaLLA", 1e-3), ("VaLLA 0.1", 0.1)):
        options = {"method": "valla", "steps": steps, "seconds": seconds, "learning_rate": rate}
        made.append(Contender(name, _PEER, peers.LAPLACE, options))
    return made


def draws(contender: Contender) -> bool:
    """Whether the contender is run for several seeds."""
    return contender.name in (f"{OURS} kmeans++", f"{OURS} random", "ELLA", "ELLA 2000")


def takes_part(contender: Contender, size: int, seed: int, outputs: int) -> bool:
    """Whether a contender is run at this size and seed."""
    if contender.name.startswith("VaLLA"):
        return seed == 0 and size <= MOST_VALLA
    features = size * (outputs if contender.options.get("points") == "inputs" else 1)
    return features <= MOST_FEATURES and (seed == 0 or draws(contender))


def split_of(where: Path, name: str, quick: bool) -> tuple[datasets.Split, dict[str, Any]]:
    """Standard split 0 of a set, and its network's description."""
    if name == "kin8nm":
        data = datasets.regression(where, name, 0)
        kind: dict[str, Any] = {"activation": "gelu", "outputs": 1}
    else:
        data = datasets.classification(where, name, 0)
        kind = {"activation": "tanh", "outputs": data.num_classes}
    if quick:
        data = replace(data, train=_first(data.train, 200), test=_first(data.test, 20))
    hidden = [10] if quick else [50, 50]
    sizes = [data.train.x.shape[1], *hidden, kind.pop("outputs")]
    return data, {"kind": "mlp", "sizes": sizes, **kind}


def _first(rows: datasets.Rows, count: int) -> datasets.Rows:
    return datasets.Rows(rows.x[:count], rows.y[:count])


def trained_network(data: datasets.Split, architecture: Mapping[str, Any], steps: int) -> nn.Module:
    """The network all contenders get."""
    torch.manual_seed(0)
    network = networks.build(architecture)
    x = torch.from_numpy(data.train.x).float()
    y = torch.from_numpy(data.train.y)

    def loss(f: torch.Tensor) -> torch.Tensor:
        if data.num_classes:
            return nn.functional.cross_entropy(f, y, reduction="sum")
        return (f.squeeze(-1) - y.float()).square().sum() / (2 * _START["noise"])

    return train(network, loss, x, steps=steps, precision=_START["precision"]).double()


def far_inputs(data: datasets.Split, count: int) -> np.ndarray:
    """Directions of test rows, at 10 to 20 times the largest norm of a training row."""
    rows = data.test.x[:count]
    radius = np.linalg.norm(data.train.x, axis=1).max() * np.linspace(*FAR, len(rows))
    return rows * (radius / np.linalg.norm(rows, axis=1))[:, None]


def nll(data: datasets.Split, mean: np.ndarray, covariance: np.ndarray, noise: float) -> float:
    """Test NLL of a latent mean (n x C) and covariance (n x C x C)."""
    if data.num_classes:
        probabilities = scores.softmax_mixture(mean, covariance)
        return scores.classification(probabilities, data.test.y)["nll"]
    return scores.gaussian_nll(mean[:, 0], covariance[:, 0, 0] + noise, data.test.y)


def compared(result: Result, exact: Result, data: datasets.Split, noise: float) -> Record:
    """What one run is scored by."""
    found, true = result.arrays, exact.arrays

    def sizes(covariance: np.ndarray) -> np.ndarray:
        return np.linalg.norm(covariance, axis=(1, 2))

    errors = sizes(found["covariance"] - true["covariance"]) / sizes(true["covariance"])
    ratio, far = (
        np.trace(found[where], axis1=1, axis2=2) / np.trace(true[where], axis1=1, axis2=2)
        for where in ("covariance", "far")
    )
    return {
        "rank": int(found["rank"]),
        "error": float(np.median(errors)),
        "largest error": float(errors.max()),
        "ratio": float(np.median(ratio)),
        "nll": nll(data, true["mean"], found["covariance"], noise),
        "far": float(np.median(far)),
        "smallest far": float(far.min()),
        "seconds": result.seconds[0],
        "peak": result.peak,
        "steps": int(found.get("steps", 0)),
    }


def run_set(
    field: Field, name: str, data: datasets.Split, architecture: Mapping[str, Any], arguments: Any
) -> tuple[list[Record], dict[str, str]]:
    """All records of one set, and the reasons of what failed."""
    network = trained_network(data, architecture, QUICK_STEPS if arguments.quick else STEPS)
    targets = data.train.y if data.num_classes else data.train.y[:, None]
    arrays = {
        **networks.weights(network),
        "x": data.train.x,
        "y": targets,
        "test_x": data.test.x,
        "far_x": far_inputs(data, 5 if arguments.quick else NUM_FAR),
    }
    case = {
        "architecture": dict(architecture),
        "dtype": "float64",
        "likelihood": "classification" if data.num_classes else "regression",
        **_START,
    }
    schedule = Schedule(timeout=_SECONDS)
    reference = Contender(EXACT, _SPARSE, options={"select": None, "tune": True})
    exact = field.answers(case, arrays, schedule, [reference])[EXACT]
    if exact.failure:
        return [], {f"{EXACT} on {name}": exact.failure}
    case["precision"] = float(exact.arrays["precision"])
    noise = case["noise"] = float(exact.arrays.get("noise", float("nan")))
    nothing = np.zeros_like(exact.arrays["covariance"])
    records: list[Record] = [
        {
            "method": MAP,
            "nll": nll(data, exact.arrays["mean"], nothing, noise),
            "rows": len(data.train.y),
            "test rows": len(data.test.y),
            "weights": sum(p.numel() for p in network.parameters()),
            "layers": architecture["sizes"],
            "precision": case["precision"],
            "noise": noise,
        },
        {"method": EXACT, **compared(exact, exact, data, noise)},
    ]
    failed = {}
    for size in sizes_of(name, arguments):
        for seed in range(arguments.seeds):
            outputs = architecture["sizes"][-1]
            running = [c for c in field.contenders if takes_part(c, size, seed, outputs)]
            found = field.answers(
                {**case, "num_inducing": size, "seed": seed}, arrays, schedule, running
            )
            for method, result in found.items():
                if result.failure:
                    failed[f"{method} on {name}, M = {size}, seed {seed}"] = result.failure
                    continue
                record = compared(result, exact, data, noise)
                records.append({"method": method, "M": size, "seed": seed, **record})
    return [{"set": name, **record} for record in records], failed


def sizes_of(name: str, arguments: argparse.Namespace) -> tuple[int, ...]:
    """The values of M."""
    if arguments.sizes:
        return tuple(int(size) for size in arguments.sizes.split(","))
    return QUICK_SIZES if arguments.quick else SIZES[name]


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--data", metavar="FOLDER", help="the data files (or LINGP_DATA)")
    parser.add_argument("--sets", metavar="NAME,...", help="these data sets only")
    parser.add_argument("--sizes", metavar="M,...", help="numbers of inducing points")
    parser.add_argument("--seeds", type=int, default=3, help="of rules that draw (3)")
    parser.add_argument("--steps", type=int, help=f"of VaLLA, at most ({VALLA_STEPS})")
    parser.add_argument(
        "--budget", type=float, default=VALLA_SECONDS, help=f"VaLLA's seconds ({VALLA_SECONDS:g})"
    )
    parser.add_argument("--plot", type=Path, help="draw this image (needs matplotlib)")
    parser.add_argument("--raw", type=Path, help="write every number to this JSON file")
    parser.add_argument("--add", type=Path, help="report what this JSON file holds as well")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seeds = 1
    torch.set_num_threads(arguments.threads)
    where = datasets.folder(arguments.data)
    start = time.perf_counter()
    records: list[Record] = json.loads(arguments.add.read_text()) if arguments.add else []
    failures: dict[str, str] = {}
    steps = arguments.steps or (2 if arguments.quick else VALLA_STEPS)
    chosen = command_line.chosen(contenders(steps, arguments.budget), arguments)
    with Field(chosen, command_line.cache(arguments), arguments.threads) as field:
        for name in datasets.chosen_sets(SETS, arguments):
            data, architecture = split_of(where, name, arguments.quick)
            found, failed = run_set(field, name, data, architecture, arguments)
            records = joined(records, found)
            failures |= failed
            if arguments.raw is not None:  # at once: a run that is cut short leaves something
                arguments.raw.parent.mkdir(parents=True, exist_ok=True)
                arguments.raw.write_text(json.dumps(records, indent=1) + "\n")
        report = [
            "# Sparse posteriors: error against the number of inducing points",
            table.machine(field, {}),
            table.versions(field.versions),
            "\n".join(settings(records)),
            f"VaLLA: {steps} steps of 100 rows, or as many as fit in {arguments.budget:g} s; prior "
            f"precision and noise held. Medians over {arguments.seeds} seeds where a rule draws. "
            f"All: {time.perf_counter() - start:.0f} s.",
            result_table(records),
            "\n".join(verdicts(records)),
            "\n".join(f"- {what} failed: {why}" for what, why in failures.items()),
        ]
    if arguments.plot is not None:
        plot(records, arguments.plot)
    command_line.publish("\n\n".join(part for part in report if part), arguments.output)


if __name__ == "__main__":
    main()
