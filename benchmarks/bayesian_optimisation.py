"""Bayesian optimisation of known functions: simple regret after each evaluation.

The same loop for both models: random first points (2 for each input), then one at a time where
qLogEI is largest. Both models are fitted anew after each evaluation, with their defaults,

    fit_linearized_gp(X, Y, bounds=bounds)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(...)) of SingleTaskGP(X, Y)

and inputs in the unit cube. Functions without noise: Branin (2 inputs), Hartmann (6), Ackley (5),
Levy (4), Rosenbrock (3). Regret is the least value found less the least there is. "random" takes
uniform points.

    python benchmarks/bayesian_optimisation.py --seeds 0:5 --output regret.md --raw regret.json \
        --picture docs/images/regret.png
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import command_line, table
from torch import Tensor

FUNCTIONS = ("branin", "hartmann6", "ackley5", "levy4", "rosenbrock3")
DEFAULT = "branin,hartmann6,ackley5"
EVALUATIONS = {"branin": 20, "hartmann6": 25, "ackley5": 20, "levy4": 25, "rosenbrock3": 20}
MODELS = ("lingp", "SingleTaskGP", "random")
RESTARTS, RAW_SAMPLES, ITERATIONS = 5, 128, 100
_LEAST = 1e-6  # of a logarithmic axis

Fit = Callable[[Tensor, Tensor, Tensor, int], Any]


@dataclass(frozen=True)
class Run:
    """One optimisation.

    Attributes
    ----------
    function, model, seed
        Which.
    regret
        After the first points, and after each evaluation.
    fit_seconds, acquisition_seconds
        Of one evaluation, on average.
    """

    function: str
    model: str
    seed: int
    regret: list[float]
    fit_seconds: float
    acquisition_seconds: float


def test_function(name: str) -> Any:
    """BoTorch's, to be minimised."""
    from botorch.test_functions import Ackley, Branin, Hartmann, Levy, Rosenbrock

    made = {
        "branin": Branin,
        "hartmann6": lambda: Hartmann(6),
        "ackley5": lambda: Ackley(5),
        "levy4": lambda: Levy(4),
        "rosenbrock3": lambda: Rosenbrock(3),
    }
    return made[name]().double()


def fit_lingp(X: Tensor, Y: Tensor, bounds: Tensor, seed: int) -> Any:
    """The linearised network, trained from new first weights."""
    from lingp.integrations.botorch import fit_linearized_gp

    generator = torch.Generator().manual_seed(seed)
    return fit_linearized_gp(X, Y, bounds=bounds, generator=generator)


def fit_single_task(X: Tensor, Y: Tensor, bounds: Tensor, seed: int) -> Any:
    """BoTorch's default."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def suggest(model: Any, best: Tensor, bounds: Tensor) -> Tensor:
    """The point where qLogEI is largest, (1 x d)."""
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.optim import optimize_acqf

    point, _ = optimize_acqf(
        qLogExpectedImprovement(model, best_f=best),
        bounds,
        q=1,
        num_restarts=RESTARTS,
        raw_samples=RAW_SAMPLES,
        options={"maxiter": ITERATIONS},
    )
    return point


def optimise(function: str, model: str, seed: int, evaluations: int) -> Run:
    """One optimisation of one function."""
    problem = test_function(function)
    bounds = torch.stack([torch.zeros(problem.dim), torch.ones(problem.dim)]).double()
    generator = torch.Generator().manual_seed(seed)
    fit: Fit | None = {"lingp": fit_lingp, "SingleTaskGP": fit_single_task}.get(model)

    def value(x: Tensor) -> Tensor:
        lower, upper = problem.bounds
        return -problem(lower + (upper - lower) * x).unsqueeze(-1)

    X = torch.rand(2 * problem.dim, problem.dim, generator=generator, dtype=torch.float64)
    Y = value(X)
    best, fitting, choosing = [float(Y.max())], 0.0, 0.0
    torch.manual_seed(seed)  # of the acquisition function and its restarts
    for number in range(evaluations):
        if fit is None:
            x = torch.rand(1, problem.dim, generator=generator, dtype=torch.float64)
        else:
            start = time.perf_counter()
            fitted = fit(X, Y, bounds, 1000 * seed + number)
            between = time.perf_counter()
            x = suggest(fitted, Y.max(), bounds)
            fitting += between - start
            choosing += time.perf_counter() - between
        X, Y = torch.cat([X, x]), torch.cat([Y, value(x)])
        best.append(float(Y.max()))
    regret = [float(-problem.optimal_value) - b for b in best]
    return Run(function, model, seed, regret, fitting / evaluations, choosing / evaluations)


def quartiles(values: np.ndarray) -> str:
    """Median, with the quartiles."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:.2g} ({low:.2g}–{high:.2g})"


def report(runs: list[Run]) -> str:
    """A table of simple regret."""
    rows = []
    seconds = sum(
        (run.fit_seconds + run.acquisition_seconds) * (len(run.regret) - 1) for run in runs
    )
    for function in dict.fromkeys(run.function for run in runs):
        for model in dict.fromkeys(run.model for run in runs):
            chosen = [r for r in runs if r.function == function and r.model == model]
            if not chosen:
                continue
            regret = np.array([run.regret for run in chosen])
            half = regret.shape[1] // 2
            rows.append(
                [
                    function,
                    model,
                    str(len(chosen)),
                    str(regret.shape[1] - 1),
                    quartiles(regret[:, 0]),
                    quartiles(regret[:, half]),
                    quartiles(regret[:, -1]),
                    f"{np.mean([run.fit_seconds for run in chosen]):.2f}",
                    f"{np.mean([run.acquisition_seconds for run in chosen]):.2f}",
                ]
            )
    header = ["function", "model", "seeds", "evaluations", "first points", "half way", "end"]
    return "\n".join(
        [
            "# Bayesian optimisation: simple regret",
            "",
            f"Median and quartiles over seeds; seconds of one evaluation. {seconds:.0f} s for all; "
            f"{table.processor()}, {torch.get_num_threads()} thread.",
            "",
            table.markdown_table([*header, "fit s", "acquisition s"], rows),
        ]
    )


def draw(path: Path, runs: list[Run]) -> None:
    """Median regret and quartiles after each evaluation, a picture for each function."""
    import matplotlib.pyplot as plt

    colors = {"lingp": "#0072B2", "SingleTaskGP": "#D55E00", "random": "#666666"}
    dashes = {"lingp": "-", "SingleTaskGP": "--", "random": ":"}
    functions = list(dict.fromkeys(run.function for run in runs))
    size = (3.9 * len(functions), 3.4)
    figure, grid = plt.subplots(
        1, len(functions), figsize=size, squeeze=False, layout="constrained"
    )
    for axes, function in zip(grid[0], functions, strict=True):
        for model in dict.fromkeys(run.model for run in runs):
            regret = [r.regret for r in runs if r.function == function and r.model == model]
            if not regret:
                continue
            low, middle, high = np.percentile(np.maximum(regret, _LEAST), [25, 50, 75], axis=0)
            at = np.arange(len(middle))
            axes.fill_between(at, low, high, color=colors[model], alpha=0.18, lw=0)
            axes.plot(at, middle, dashes[model], color=colors[model], lw=1.8, label=model)
        axes.set_yscale("log")
        axes.set_title(f"{function} ({len(regret)} seeds)", fontsize=11)
        axes.set_xlabel("evaluations after the first points")
        axes.grid(True, alpha=0.25, lw=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    grid[0, 0].set_ylabel("simple regret: median, quartiles")
    grid[0, 0].legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--functions", metavar="NAME,...", default=DEFAULT)
    parser.add_argument("--seeds", metavar="A:B", default="0:5", help="from A to before B (0:5)")
    parser.add_argument("--evaluations", type=int, help="after the first points")
    parser.add_argument("--raw", type=Path, help="keep every run in this JSON file, and go on")
    parser.add_argument("--picture", type=Path, help="draw the regret curves into this file")
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    first, last = (int(part) for part in arguments.seeds.split(":"))
    functions = arguments.functions.split(",")
    unknown = sorted(set(functions) - set(FUNCTIONS))
    if unknown:
        raise SystemExit(f"no function {', '.join(unknown)}; there are: {', '.join(FUNCTIONS)}")
    skipped = arguments.skip.split(",")
    models = [
        model
        for model in MODELS
        if model not in skipped and (not arguments.only or model in arguments.only.split(","))
    ]
    if arguments.quick:
        functions, last = functions[:1], first + 1
    runs: list[Run] = []
    if arguments.raw is not None and arguments.raw.exists():
        runs = [Run(**run) for run in json.loads(arguments.raw.read_text())]
    for seed in range(first, last):  # seeds outside: what is there when stopped is balanced
        for function in functions:
            for model in models:
                if any((r.function, r.model, r.seed) == (function, model, seed) for r in runs):
                    continue
                count = arguments.evaluations or (2 if arguments.quick else EVALUATIONS[function])
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    runs.append(optimise(function, model, seed, count))
                if arguments.raw is not None:
                    arguments.raw.parent.mkdir(parents=True, exist_ok=True)
                    arguments.raw.write_text(json.dumps([asdict(run) for run in runs]) + "\n")
    runs = [r for r in runs if first <= r.seed < last and r.function in functions]
    command_line.publish(report(runs), arguments.output)
    if arguments.picture is not None:
        draw(arguments.picture, runs)


if __name__ == "__main__":
    main()
