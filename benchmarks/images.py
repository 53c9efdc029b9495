"""A convolutional network on images: MAP, lingp's sparse posterior, laplace-torch.

LeNet (61,706 weights, ten classes), trained by minibatch Adam on 8,000 of the 10,000 stored MNIST
images with a weight decay that is a prior of precision 1; pixels between 0 and 1; the other 2,000
are the test set. Everyone gets the same network, and tunes its prior precision as it does by
default:

    MAP                        softmax of the network's outputs
    lingp                      LinearizedGP(net, "categorical", inference=Sparse(100)): all weights,
                               joint 10 x 10 covariances, float64 (the network is float32)
    laplace-torch kron         all weights, Kronecker factors
    laplace-torch last-layer   the last layer's weights, full covariance

Accuracy, NLL, ECE on the test images; AUROC of telling 2,000 notMNIST images (letters) from the
test images by the largest class probability or the entropy. Seconds of fit, tuning and 2,000 test
predictions; memory is the process's largest resident set until then, libraries and data included.

    python benchmarks/images.py --output images.md --cache lenet.npz
    python benchmarks/images.py --quick --only lingp    # no other environment needed
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import datasets
import networks
import numpy as np
import peers
import scores
import torch
from harness import command_line, table
from harness.rounds import Contender, Field, Result, Schedule
from torch import nn

OURS, MAP = "lingp", "MAP"
NUM_INDUCING, QUICK_INDUCING = 100, 5
SIZES, QUICK_SIZES = (8000, 2000), (100, 40)
EPOCHS, QUICK_EPOCHS, BATCH = 20, 2, 64
PRECISION = 1.0
_RATES = (2e-3, 1e-5)
_LARGEST_SECONDS, _LARGEST_BYTES = 180.0, 4 * 2**30
_SECONDS = 3600.0
_STEPS = ("fit", "tune", "predict")


def contenders(num_inducing: int) -> list[Contender]:
    """lingp, and laplace-torch's two structures for a network of this size."""
    made = [Contender(OURS, "contenders.images_lingp", options={"num_inducing": num_inducing})]
    for name, subset, structure in (
        ("laplace-torch kron", "all", "kron"),
        ("laplace-torch last-layer", "last_layer", "full"),
    ):
        options = {"subset": subset, "structure": structure}
        made.append(Contender(name, "contenders.images_laplace", peers.LAPLACE, options))
    return made


def train(network: nn.Module, data: datasets.Rows, epochs: int) -> nn.Module:
    """Minimise -log p(y | f) + ½ τ |θ|² by Adam on minibatches, with a cosine schedule."""
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    parameters = list(network.parameters())
    first, last = _RATES
    optimizer = torch.optim.Adam(parameters, lr=first)
    steps, step = epochs * math.ceil(len(x) / BATCH), 0
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            for group in optimizer.param_groups:
                group["lr"] = last + 0.5 * (first - last) * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            decay = sum(p.square().sum() for p in parameters) / len(x)
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            (loss + 0.5 * PRECISION * decay).backward()
            optimizer.step()
            step += 1
    return network.eval()


def trained_network(data: datasets.Rows, epochs: int, cache: Path) -> nn.Module:
    """LeNet, trained; read from a file if there is one of the same training, else written."""
    recipe = json.dumps([len(data.y), epochs, BATCH, PRECISION, _RATES])
    torch.manual_seed(0)
    network = networks.build({"kind": "lenet"})
    if cache.exists():
        with np.load(cache, allow_pickle=False) as file:
            if str(file["recipe"]) == recipe:
                found = {name: file[name] for name in file.files if name != "recipe"}
                return networks.load_weights(network, found, torch.float32).eval()
    start = time.perf_counter()
    train(network, data, epochs)
    print(f"trained in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    cache.parent.mkdir(parents=True, exist_ok=True)
    np.savez(cache, recipe=np.array(recipe), **networks.weights(network))
    return network


def scored(test: np.ndarray, outside: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Scores of the probabilities of test images (n x C) and of images from outside (m x C)."""
    return {
        **scores.classification(test, y),
        "auroc confidence": scores.auroc(-test.max(axis=1), -outside.max(axis=1)),
        "auroc entropy": scores.auroc(scores.entropy(test), scores.entropy(outside)),
    }


def alone(network: nn.Module, *images: np.ndarray) -> list[np.ndarray]:
    """The network's own probabilities."""
    with torch.no_grad():
        return [torch.softmax(network(torch.from_numpy(x)), dim=-1).numpy() for x in images]


def row(name: str, found: Mapping[str, float], result: Result | None) -> list[str]:
    """One line of the table."""
    digits = {"accuracy": 4, "nll": 4, "ece": 4, "auroc confidence": 4, "auroc entropy": 4}
    cells = [name, *(f"{found[score]:.{count}f}" for score, count in digits.items())]
    if result is None:
        return [*cells, *["–"] * 6]
    seconds = [float(result.arrays[f"seconds {step}"]) for step in _STEPS]
    return [
        *cells,
        f"{float(result.arrays['precision']):.3g}",
        *(f"{value:.1f}" for value in seconds),
        f"{sum(seconds):.1f}",
        f"{float(result.arrays['peak']) / 2**20:.2f}",
    ]


def verdicts(results: Mapping[str, Result]) -> list[str]:
    """The targets: time of fit and predictions, memory."""
    lines = []
    for name, result in results.items():
        if name.startswith(OURS) and not result.failure:
            spent = sum(float(result.arrays[f"seconds {step}"]) for step in ("fit", "predict"))
            peak = 1024 * float(result.arrays["peak"])
            lines.append(
                table.verdict(
                    f"{name}: fit and predictions, without tuning",
                    spent,
                    _LARGEST_SECONDS,
                    at_most=True,
                    unit=" s",
                )
            )
            lines.append(
                table.verdict(
                    f"{name}: peak memory, tuning included",
                    peak / 2**30,
                    _LARGEST_BYTES / 2**30,
                    at_most=True,
                    unit=" GiB",
                )
            )
    return lines


def report(rows: list[list[str]], results: Mapping[str, Result], field: Field, sizes: str) -> str:
    """The whole report."""
    header = ["method", "accuracy", "NLL", "ECE", "AUROC (confidence)", "AUROC (entropy)", "τ"]
    times = [f"{step} (s)" for step in _STEPS]
    parts = [
        f"# LeNet, {sizes}",
        table.machine(field, {}),
        table.versions(field.versions),
        table.markdown_table([*header, *times, "all (s)", "peak (GiB)"], rows),
        "\n".join(verdicts(results)),
        "\n".join(table.failures(results, "images")),
    ]
    return "\n\n".join(part for part in parts if part)


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--data", metavar="FOLDER", help="the data files (or LINGP_DATA)")
    parser.add_argument("--cache", type=Path, help="keep the trained network in this file")
    parser.add_argument("--inducing", type=int, help=f"inducing inputs ({NUM_INDUCING})")
    parser.add_argument("--raw", type=Path, help="write every number to this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    quick = arguments.quick
    num_train, num_test = QUICK_SIZES if quick else SIZES
    where = datasets.folder(arguments.data)
    data, test = datasets.images(where, "mnist", num_train, num_test)
    (outside,) = datasets.images(where, "notmnist", num_test)
    name = f"lenet-{num_train}.npz"
    cache = arguments.cache or Path(tempfile.gettempdir()) / "lingp-benchmarks" / name
    network = trained_network(data, QUICK_EPOCHS if quick else EPOCHS, cache)
    case = {"architecture": {"kind": "lenet"}, "dtype": "float32", "batch": BATCH}
    arrays = {
        **networks.weights(network),
        "x": data.x,
        "y": data.y,
        "test_x": test.x,
        "outside_x": outside.x,
    }
    num_inducing = arguments.inducing or (QUICK_INDUCING if quick else NUM_INDUCING)
    chosen = command_line.chosen(contenders(num_inducing), arguments)
    found = {MAP: scored(*alone(network, test.x, outside.x), test.y)}
    rows = [row(MAP, found[MAP], None)]
    with Field(chosen, command_line.cache(arguments), arguments.threads) as field:
        results = field.answers(case, arrays, Schedule(timeout=_SECONDS))
        for method, result in results.items():
            if not result.failure:
                parts = result.arrays["test"], result.arrays["outside"]
                found[method] = scored(*parts, test.y)
                rows.append(row(method, found[method], result))
        weights = sum(p.numel() for p in network.parameters())
        sizes = f"{weights} weights, {num_train} training and {num_test} test images, M = "
        made = report(rows, results, field, f"{sizes}{num_inducing}")
    if arguments.raw is not None:
        arguments.raw.parent.mkdir(parents=True, exist_ok=True)
        arguments.raw.write_text(json.dumps(found, indent=1) + "\n")
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()
