"""One posterior by every method of inference: seconds, and how far from the exact one.

The network is 8-50-50-1 (GELU, 3,051 weights) on the first 2,000 training rows of kin8nm, split 0;
precision and noise are those of the exact evidence for all methods, and the mean is the network's,
so that methods differ in covariances alone.

    python benchmarks/which_inference.py            # a minute
    python benchmarks/which_inference.py --quick    # small sizes, made-up data
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import torch
import training
from harness.command_line import publish
from harness.table import markdown_table
from torch import Tensor, nn

import lingp
from lingp.likelihoods import Gaussian

HEADER = [
    "inference",
    "fit (s)",
    "evidence (s)",
    "predictions (s)",
    "error of a variance, median",
    "variance / exact, median",
    "evidence less exact",
    "test NLL",
]
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def methods(size: int) -> dict[str, dict[str, Any]]:
    """Names and options; the first is the reference."""

    def options(kind: type, num_inducing: int) -> dict[str, Any]:
        return {"inference": kind(num_inducing)}

    return {
        '"weight_space"': {"inference": "weight_space"},
        '"function_space"': {"inference": "function_space"},
        f"Iterative({size})": options(lingp.Iterative, size),
        f"Sparse({size})": options(lingp.Sparse, size),
        f"Sparse({4 * size})": options(lingp.Sparse, 4 * size),
        'parameters="last_layer"': {"inference": "weight_space", "parameters": "last_layer"},
    }


def compare(data: Data, steps: int, size: int) -> list[list[str]]:
    """A line of the table for each method."""
    x, y, x_test, y_test = data
    torch.manual_seed(0)
    hidden = [nn.Linear(x.shape[1], 50), nn.GELU(), nn.Linear(50, 50), nn.GELU()]
    net = nn.Sequential(*hidden, nn.Linear(50, 1)).double()
    training.train(net, lambda f: (f - y).square().sum(), x, steps=steps, precision=0.1)
    with torch.no_grad():
        error = float((net(x) - y).square().mean())
    tuned = lingp.LinearizedGP(net, Gaussian(error)).fit(x, y, progress=False)
    tuned.optimize_hyperparameters()
    noise, precision = tuned.likelihood.noise.item(), tuned.prior.precision.item()
    rows: list[list[str]] = []
    exact: Tensor | None = None
    exact_evidence = 0.0
    for name, options in methods(size).items():
        gp = lingp.LinearizedGP(net, Gaussian(noise), prior=precision, **options)

        def fit(gp: lingp.LinearizedGP = gp) -> None:
            gp.fit(x, y, progress=False).laplace.posterior()

        _, fitting = timed(fit)
        evidence, evaluating = timed(gp.evidence)
        prediction, predicting = timed(lambda gp=gp: gp.predict(x_test, progress=False))
        variance = prediction.epistemic_variance
        if exact is None:
            exact, exact_evidence = variance, evidence.value
        ratio = variance / exact
        spread = f" ± {evidence.standard_error:.1f}" if evidence.standard_error else ""
        same_model = "parameters" not in options
        rows.append(
            [
                name,
                f"{fitting:.2f}",
                f"{evaluating:.2f}",
                f"{predicting:.2f}",
                f"{float((ratio - 1).abs().median()):.1e}",
                f"{float(ratio.median()):.3f}",
                f"{evidence.value - exact_evidence:+.1f}{spread}" if same_model else "",
                f"{-float(prediction.log_prob(y_test).mean()):.4f}",
            ]
        )
    return rows


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What work gives, and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def stored(where: Path, rows: int) -> Data:
    """kin8nm."""
    split = datasets.regression(where, "kin8nm", 0)
    train, test = split.train, split.test
    x, x_test = (torch.as_tensor(part.x, dtype=torch.float64) for part in (train, test))
    y, y_test = (torch.as_tensor(part.y, dtype=torch.float64)[:, None] for part in (train, test))
    return x[:rows], y[:rows], x_test, y_test


def made_up() -> Data:
    """A hundred rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 3, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True).sin()
    y = y + 0.1 * torch.randn(100, 1, generator=generator, dtype=torch.float64)
    return x[:60], y[:60], x[60:], y[60:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, made-up data")
    parser.add_argument("--data", help=f"the folder of data files (or {datasets.DATA_VARIABLE})")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="write the report to this file too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        data, steps, size = made_up(), 50, 8
    else:
        data, steps, size = stored(datasets.folder(arguments.data), 2000), 400, 250
    table = markdown_table(HEADER, compare(data, steps, size))
    sizes = f"{len(data[0])} rows, {len(data[2])} predictions, threads: {arguments.threads}"
    publish(f"{sizes}\n\n{table}", arguments.output)


if __name__ == "__main__":
    main()
