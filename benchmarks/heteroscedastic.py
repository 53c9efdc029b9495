"""Noise that depends on the input: predictives of the heteroscedastic natural head on UCI sets.

Standard splits 0 to 3 of yacht, energy, concrete (two hidden layers of 50 GELU units) and boston
(one). Inputs and targets standardised; full-batch Adam, 1e-2 to 1e-5 by a cosine, 2400 steps; every
300 steps the prior precision τ becomes that of largest evidence,

    LinearizedGP(net, Heteroscedastic(), prior=τ).fit(X, y).optimize_hyperparameters()

and training goes on with the weight decay ½ τ |θ|². In the same way, with the noise too, for the
homoscedastic network (Gaussian likelihood). Test log-likelihoods are in the units of the data.

    MAP         the network alone: log p(y | f*)
    mixture     the full mixture over both natural parameters (lingp's default)
    natural     the published predictive: variance σ² + v_f, with η₂ held fixed
    delta       moments by linearising mean and variance

    python benchmarks/heteroscedastic.py --output heteroscedastic.md --raw heteroscedastic.json
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import datasets
import numpy as np
import scores
from harness import command_line, table
from harness.rounds import Contender, Field, Schedule

SETS = ("yacht", "energy", "boston", "concrete")
HIDDEN_LAYERS = {"yacht": 2, "energy": 2, "boston": 1, "concrete": 2}
STEPS, QUICK_STEPS = 2400, 80
TARGETS = {"yacht": -0.71, "energy": -0.73, "boston": -2.19, "concrete": -2.85}
PUBLISHED = {"yacht": -1.17, "energy": -1.20, "boston": -2.23, "concrete": -2.90}
_SECONDS = 1800.0

Record = dict[str, float]


def report(records: dict[str, dict[int, Record]], quick: bool, seconds: float) -> str:
    """Tables of log-likelihoods and errors, and the targets."""

    def cells(name: str, columns: tuple[str, ...]) -> list[str]:
        return [scores.cell([r[c] for r in records[name].values()], 2) for c in columns]

    likelihoods = ("MAP", "mixture", "natural", "delta", "mixture refit", "natural refit")
    others = ("homoscedastic exact", "homoscedastic exact refit")
    errors = tuple(
        f"{name} rmse" for name in ("mixture", "mixture refit", "natural", "natural refit", *others)
    )
    splits = [str(len(records[name])) for name in records]
    lines = [
        "# Heteroscedastic regression: test log-likelihood in the units of the data",
        "",
        f"Mean ± standard error over splits; {seconds:.0f} s for all.",
        "",
        table.markdown_table(
            ["set", "splits", *likelihoods, *others],
            [
                [name, count, *cells(name, (*likelihoods, *others))]
                for name, count in zip(records, splits, strict=True)
            ],
        ),
        "",
        "Root mean squared error of the predictive median:",
        "",
        table.markdown_table(
            ["set", "splits", *(name.removesuffix(" rmse") for name in errors)],
            [
                [name, count, *cells(name, errors)]
                for name, count in zip(records, splits, strict=True)
            ],
        ),
        "",
    ]
    if not quick:
        for name, found in records.items():
            mixture = np.mean([record["mixture"] for record in found.values()])
            natural = np.mean([record["natural"] for record in found.values()])
            met = "met" if mixture >= TARGETS[name] - 0.005 else "not met"
            lines.append(
                f"- {name}: natural {natural:.2f} → mixture **{mixture:.2f}** (target "
                f"{PUBLISHED[name]:.2f} → {TARGETS[name]:.2f}: {met})"
            )
    return "\n".join(lines)


def main() -> None:
    parser = command_line.parser(__doc__)
    datasets.add_flags(parser, splits="0:4")
    parser.add_argument("--raw", type=Path, help="write every number to this JSON file")
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    where = datasets.folder(arguments.data)
    if arguments.quick:
        arguments.sets, arguments.splits = arguments.sets or SETS[0], "0:1"
    start = time.perf_counter()
    records: dict[str, dict[int, Record]] = {}
    ours = [Contender("lingp", "contenders.heteroscedastic_lingp")]
    with Field(ours, command_line.cache(arguments), arguments.threads) as field:
        for name in datasets.chosen_sets(SETS, arguments):
            records[name] = {}
            for index in datasets.chosen_splits(arguments):
                split = datasets.regression(where, name, index)
                steps = QUICK_STEPS if arguments.quick else STEPS
                case = {
                    "hidden": HIDDEN_LAYERS[name],
                    "seed": index,
                    "steps": steps,
                    "target_std": split.target_std,
                }
                arrays = {
                    "x": split.train.x,
                    "y": split.train.y,
                    "test_x": split.test.x,
                    "test_y": split.test.y,
                }
                result = field.answers(case, arrays, Schedule(timeout=_SECONDS))["lingp"]
                if result.failure:
                    raise SystemExit(f"{name}, split {index}: {result.failure}")
                found = {key: float(value) for key, value in result.arrays.items()}
                records[name][index] = {**found, "seconds": result.seconds[0]}
                if arguments.raw is not None:
                    arguments.raw.parent.mkdir(parents=True, exist_ok=True)
                    arguments.raw.write_text(json.dumps(records, indent=1) + "\n")
        made = report(records, arguments.quick, time.perf_counter() - start)
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()
