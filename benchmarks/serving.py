"""How long a fitted Gaussian process takes for one prediction, by the number of training rows.

Three models on made-up data with 8 inputs, each of a network with one hidden layer of 20 tanh
units that isn't trained (a prediction takes as long):

    Gaussian    one output, weight space, the network's mean
    softmax     three classes, weight space, refitted mean
    sparse      one output, 100 inducing inputs, the network's mean

A warm prediction (the posterior is there) of 1 row and of 100 rows, mean and variance, or class
probabilities, as a service would ask for them: median and 99th percentile of many calls. What
depends on the training data alone was done in `fit`, so that the time should be free of N.

    python benchmarks/serving.py            # 2,000, 20,000 and 200,000 rows; minutes
    python benchmarks/serving.py --quick    # 200 and 2,000 rows
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from harness import command_line
from harness.table import markdown_table
from torch import Tensor, nn

import lingp

HEADER = ["model", "N", "rows", "median (ms)", "99 % (ms)", "predictions a second", "/ least N"]
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "Gaussian": ("gaussian", 1, {"inference": "weight_space"}),
    "softmax, refitted": ("categorical", 3, {"inference": "weight_space", "mean": "refit"}),
    "sparse": ("gaussian", 1, {"inference": lingp.Sparse(100)}),
}
_INPUTS, _UNITS = 8, 20


def fitted(name: str, num_data: int) -> tuple[lingp.LinearizedGP, Tensor]:
    """A model with data, its posterior made, and inputs to predict at."""
    likelihood, num_outputs, options = MODELS[name]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(_INPUTS, _UNITS), nn.Tanh(), nn.Linear(_UNITS, num_outputs))
    x = torch.randn(num_data + 100, _INPUTS, dtype=torch.float64)
    y = x[:, :num_outputs].sin() + 0.1 * torch.randn(len(x), num_outputs, dtype=torch.float64)
    targets = y if likelihood == "gaussian" else y.argmax(1)
    gp = lingp.LinearizedGP(net, likelihood, **options)
    gp.fit(x[:num_data], targets[:num_data], progress=False)
    return gp, x[num_data:]


def seconds(gp: lingp.LinearizedGP, x: Tensor, calls: int) -> np.ndarray:
    """Of each of many calls, after some to warm up."""
    spent = []
    for i in range(calls + 5):
        start = time.perf_counter()
        prediction = gp.predict(x, progress=False)
        _ = prediction.probs if gp.likelihood.saturates else (prediction.mean, prediction.variance)
        if i >= 5:
            spent.append(time.perf_counter() - start)
    return np.array(spent)


def measure(arguments: argparse.Namespace) -> list[list[str]]:
    """A line for each model, size and number of rows."""
    sizes = [200, 2000] if arguments.quick else [2_000, 20_000, 200_000]
    calls = arguments.turns or (20 if arguments.quick else 300)
    lines, first = [], {}
    for name in MODELS:
        for size in sizes:
            gp, x = fitted(name, size)
            for rows in (1, 100):
                spent = seconds(gp, x[:rows], calls)
                median, late = float(np.median(spent)), float(np.quantile(spent, 0.99))
                least = first.setdefault((name, rows), median)
                numbers = [f"{1e3 * median:.2f}", f"{1e3 * late:.2f}", f"{rows / median:.0f}"]
                lines.append([name, f"{size:,}", str(rows), *numbers, f"{median / least:.2f}"])
    return lines


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    command_line.publish(markdown_table(HEADER, measure(arguments)), arguments.output)


if __name__ == "__main__":
    main()
