"""Whether the range of rotations is found that was put into the data.

MNIST images, each rotated once by an angle uniform in ± a known range, 12 x 12 pixels. A network
that averages its outputs over S rotations in ± its own range is trained with the evidence, and the
range is moved by the evidence's gradient (`lingp.training.InputLearner`), from 10 degrees. Beside
it, the same network without rotations, trained in the same way. One row for each true range:
learned range, evidence of both, accuracy and negative log-likelihood (of the network's own
outputs) on test images rotated in the same way.

With `--grid`, networks are trained at fixed ranges too: where is the evidence's maximum, and would
test data have chosen the same?

    python benchmarks/invariance.py --ranges 0,45,90 --output invariance.md
    python benchmarks/invariance.py --ranges 45 --grid 20,45,70
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import datasets
import torch
from harness.command_line import publish
from harness.table import markdown_table
from torch import Tensor, nn
from torch.nn import functional as F

from lingp.training import Augmented, InputLearner, RandomRotation, train_with_evidence

START = 10.0  # degrees, where the search begins


@dataclass(frozen=True)
class Sizes:
    """How much work: rows, samples S of an average, steps of the weights and between updates."""

    train: int = 2000
    test: int = 2000
    samples: int = 8
    steps: int = 800
    updates: int = 3
    every: int = 8
    burn_in: int = 100


QUICK = Sizes(train=60, test=100, samples=3, steps=20, updates=1, every=5, burn_in=0)


@dataclass(frozen=True)
class Found:
    """One trained network; ranges in degrees, `kind` is "learned", "fixed" or "none"."""

    kind: str
    true_range: float
    range: float
    evidence: float
    effective_parameters: float
    precision: float
    accuracy: float
    nll: float
    seconds: float
    path: list[float]


def make_network(name: str) -> nn.Module:
    """A small network for 12 x 12 images: "cnn", or the number of tanh units of one layer."""
    torch.manual_seed(0)
    if name == "cnn":
        first, second = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 10, 3)
        features = nn.Sequential(first, nn.Tanh(), nn.AvgPool2d(2), second, nn.Tanh())
        return nn.Sequential(features, nn.Flatten(), nn.Linear(40, 10))
    width = int(name)
    return nn.Sequential(nn.Flatten(), nn.Linear(144, width), nn.Tanh(), nn.Linear(width, 10))


def rotated(rows: datasets.Rows, degrees: float, seed: int) -> tuple[Tensor, Tensor]:
    """Images rotated by angles uniform in ± degrees at full resolution, then made smaller."""
    x, y = torch.from_numpy(rows.x), torch.from_numpy(rows.y)
    generator = torch.Generator().manual_seed(seed)
    angle = math.radians(degrees) * (2 * torch.rand(len(x), generator=generator) - 1)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    matrix = torch.stack([cos, -sin, zero, sin, cos, zero], -1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    turned = F.grid_sample(x, grid, align_corners=False)
    return F.avg_pool2d(turned[:, :, 2:26, 2:26], 2), y


def trained(
    kind: str, true_range: float, start: float, name: str, sizes: Sizes, where: Path
) -> Found:
    """A network trained with the evidence on images rotated by the true range."""
    parts = datasets.images(where, "mnist", sizes.train, sizes.test)
    (x, y), (x_test, y_test) = (rotated(rows, true_range, i) for i, rows in enumerate(parts))
    net = make_network(name)
    if kind != "none":
        rotation = RandomRotation(start, learnable=kind == "learned")
        net = Augmented(net, rotation, sizes.samples)
    learner = InputLearner(
        learning_rate=0.15,
        decay=60,
        every=sizes.every,
        start=sizes.burn_in,
        block_size=40,
        refresh=8,
        curvature_rows=1000,
    )
    before = time.perf_counter()
    found = train_with_evidence(
        net,
        x,
        y,
        likelihood="categorical",
        prior=2.0,
        steps=sizes.steps,
        updates=sizes.updates,
        batch_size=128,
        learning_rate=(1e-2, 2e-4),
        input_learner=learner if kind == "learned" else None,
        progress=False,
    )
    seconds = time.perf_counter() - before
    with torch.no_grad():
        f = found.net(x_test)
    return Found(
        kind,
        true_range,
        found.net.augmentation.max_angle if isinstance(found.net, Augmented) else 0.0,
        found.history[-1].evidence,
        found.history[-1].effective_parameters,
        float(found.prior.precision.detach()),
        float((f.argmax(1) == y_test).double().mean()),
        float(F.cross_entropy(f, y_test)),
        seconds,
        [step.values["max_angle"] for step in learner.history],
    )


def table(results: list[Found]) -> str:
    """One row for each true range: with the learned range, and without rotations."""
    header = ["true range", "learned", "error", "evidence", "accuracy", "NLL", "s"]
    header += ["evidence, none", "accuracy, none", "NLL, none"]
    rows = []
    for true_range in dict.fromkeys(r.true_range for r in results):
        one, none = (
            next(r for r in results if r.kind == kind and r.true_range == true_range)
            for kind in ("learned", "none")
        )
        error = f"{one.range / true_range - 1:+.0%}" if true_range else "–"
        row = [f"{true_range:g}°", f"{one.range:.1f}°", error, *_scores(one)]
        rows.append([*row, f"{one.seconds:.0f}", *_scores(none)])
    return markdown_table(header, rows)


def grid_table(results: list[Found]) -> str:
    """One row for each network trained at a fixed range."""
    header = ["true range", "fixed at", "evidence", "accuracy", "NLL"]
    fixed = [r for r in results if r.kind == "fixed"]
    return markdown_table(
        header, [[f"{r.true_range:g}°", f"{r.range:.0f}°", *_scores(r)] for r in fixed]
    )


def _scores(found: Found) -> list[str]:
    return [f"{found.evidence:.0f}", f"{found.accuracy:.1%}", f"{found.nll:.3f}"]


def main() -> None:
    """Train, write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all works")
    parser.add_argument("--data", metavar="FOLDER", help="the data files (or LINGP_DATA)")
    parser.add_argument("--ranges", metavar="DEGREES,...", default="0,45,90")
    parser.add_argument("--grid", metavar="DEGREES,...", help="also train at these fixed ranges")
    parser.add_argument("--network", default="cnn", help='"cnn", or a number of hidden units')
    parser.add_argument("--rows", type=int, help=f"training images ({Sizes.train})")
    parser.add_argument("--output", type=Path, help="write the report to this file too")
    parser.add_argument("--raw", type=Path, help="a JSON file for every number")
    arguments = parser.parse_args()
    where = datasets.folder(arguments.data)
    sizes = QUICK if arguments.quick else Sizes(train=arguments.rows or Sizes.train)
    logging.disable(logging.INFO)
    results: list[Found] = []
    for true_range in (float(value) for value in arguments.ranges.split(",")):
        jobs = [("learned", START), ("none", 0.0)]
        jobs += [("fixed", float(value)) for value in (arguments.grid or "").split(",") if value]
        for kind, start in jobs:
            results.append(trained(kind, true_range, start, arguments.network, sizes, where))
            if arguments.raw:
                arguments.raw.write_text(json.dumps([asdict(r) for r in results]))
    report = [f"Network: {arguments.network}; {sizes}", "", table(results)]
    if arguments.grid:
        report += ["", grid_table(results)]
    publish("\n".join(report), arguments.output)


if __name__ == "__main__":
    main()
