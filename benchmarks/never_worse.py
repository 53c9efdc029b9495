"""Where the Gaussian process of a trained classifier predicts worse than the network itself.

Networks as users train them, on images, tokens and tables (never_worse_cases.py). On one network
each, in turn:

    network              softmax of its outputs
    temperature          the same at the temperature of least NLL on the validation rows
    laplace-torch last   Laplace(net, "classification"): its default, last layer and Kronecker
                         factors; .fit, .optimize_prior_precision(), la(x): the evidence, probit
    laplace-torch all    the same with subset_of_weights="all"; BatchNorm's and LayerNorm's
                         weights, which its Kronecker factors don't have, stay fixed
    lingp ...            LinearizedGP(net, "categorical", ...).fit(X, y).predict(x): the rows of
                         OURS below; "evidence" with .optimize_hyperparameters() between,
                         "validation" with .optimize_hyperparameters(validation=...)

"temperature" and "validation" know the validation rows, the others don't. Test NLL, ECE, accuracy;
AUROC of telling rows that lie outside from test rows by the entropy of the predictive; seconds of
the processor, so that what else the machine does plays no part.

Every result is a file of its own, `<raw>/<case>/<split>/<contender>.json`. What is there is not
done again (`--again`: it is), so that a run can be stopped and goes on; the report is of all files
in the folder. Networks are kept in a folder too.

    python benchmarks/never_worse.py --raw folder --nets folder --splits 0:3 --output report.md
    python benchmarks/never_worse.py --raw folder --nets folder --cases cnn-400 --again
    python benchmarks/never_worse.py --raw folder --splits 0:0                # only the report
    python benchmarks/never_worse.py --quick --only "network,lingp scale 1"   # no other environment
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import datasets
import never_worse_cases as cases
import never_worse_report as reports
import numpy as np
import peers
import scores
import torch
from harness import command_line
from harness.rounds import Contender, Field, Result, Schedule

NETWORK, TEMPERATURE = reports.NETWORK, "temperature"
WHOLE_BATCH, BATCH = 1500, 64  # laplace-torch is fitted to up to so many rows at once
_SECONDS = 3600.0


@dataclass(frozen=True)
class Ours:
    """One way to call lingp: keywords of `LinearizedGP`, and how its hyperparameters are tuned."""

    name: str
    tuning: Literal["none", "evidence", "validation"]
    arguments: Mapping[str, Any]


OURS = (
    Ours("lingp scale 1", "none", {"mean_scale": 1.0}),
    Ours("lingp scale 1 evidence", "evidence", {"mean_scale": 1.0}),
    Ours("lingp scale 1 validation", "validation", {"mean_scale": 1.0}),
    Ours("lingp", "none", {}),
    Ours("lingp evidence", "evidence", {}),
    Ours("lingp validation", "validation", {}),
)


def contenders() -> list[Contender]:
    """The network, its peers, and lingp's rows."""
    made = [
        Contender(name, "contenders.classifier_alone", options={"scaled": name == TEMPERATURE})
        for name in (NETWORK, TEMPERATURE)
    ]
    for name, subset in (("last", "last_layer"), ("all", "all")):
        options = {
            "subset": subset,
            "structure": "kron",
            "fixed": "BatchNorm2d,LayerNorm",
            "clock": "processor",
        }
        made.append(
            Contender(f"laplace-torch {name}", "contenders.images_laplace", peers.LAPLACE, options)
        )
    for row in OURS:
        options = {"arguments": dict(row.arguments), "tuning": row.tuning}
        made.append(Contender(row.name, "contenders.never_worse_lingp", options=options))
    return made


def scored(problem: cases.Problem, result: Result) -> reports.Found:
    """All numbers of one contender on one split; why, where it has none."""
    if result.failure:
        return {"failure": result.failure}
    arrays = result.arrays
    test, outside = arrays["test"], arrays["outside"]
    for probabilities in (test, outside):
        if broken := int((~(probabilities >= 0)).any(axis=1).sum()):  # nan, or below zero
            why = f"no probabilities for {broken} of {len(probabilities)} rows"
            return {"failure": why}
    inside, far = scores.entropy(test), scores.entropy(outside)
    found: reports.Found = {**scores.classification(test, problem.test.y)}
    found["auroc"] = scores.auroc(inside, far)
    ends = np.cumsum([len(part) for part in problem.outside.values()])
    for name, part in zip(problem.outside, np.split(far, ends[:-1]), strict=True):
        found[f"auroc {name}"] = scores.auroc(inside, part)
    numbers = {name: value for name, value in arrays.items() if value.ndim == 0}
    found |= {name: float(value) for name, value in numbers.items()}
    for name in ("warnings", "inference"):
        found[name] = [str(text) for text in arrays.get(name, ())]
    return found


def arrays_of(problem: cases.Problem) -> dict[str, np.ndarray]:
    """What contenders get beside the network."""
    return {
        "x": problem.train.x,
        "y": problem.train.y,
        "valid_x": problem.valid.x,
        "valid_y": problem.valid.y,
        "test_x": problem.test.x,
        "outside_x": np.concatenate(list(problem.outside.values())),
    }


def run_split(
    field: Field, name: str, index: int, make: cases.Case, arguments: argparse.Namespace
) -> None:
    """Every contender on one split of a case that has no file there yet."""
    files = {c.name: arguments.raw / name / str(index) / f"{c.name}.json" for c in field.contenders}
    missing = [c for c in field.contenders if arguments.again or not files[c.name].exists()]
    if not missing:
        return
    problem = make(arguments.where, index)
    weights = cases.trained_network(problem, index, arguments.nets / f"{name}-{index}.npz")
    arrays = {**weights, **arrays_of(problem)}
    rows = len(problem.train.y)
    case = {
        "architecture": dict(problem.architecture),
        "dtype": str(problem.train.x.dtype),
        "batch": BATCH,
        "fit_batch": rows if rows <= WHOLE_BATCH else BATCH,  # one batch: no average of factors
    }
    for contender in missing:
        start = time.perf_counter()
        result = field.answers(case, arrays, Schedule(timeout=_SECONDS), [contender])
        found = scored(problem, result[contender.name])
        reports.write(files[contender.name], found)
        said = found.get("failure") or f"NLL {found['nll']:.4f}"
        spent = time.perf_counter() - start
        print(f"{name} {index} {contender.name}: {said} ({spent:.1f} s)", file=sys.stderr)


def chosen_cases(arguments: argparse.Namespace) -> dict[str, cases.Case]:
    """The cases whose names fit one of the patterns."""
    known = cases.QUICK_CASES if arguments.quick else cases.CASES
    if not arguments.cases:
        return known
    patterns = arguments.cases.split(",")
    if unknown := [p for p in patterns if not any(fnmatch(name, p) for name in known)]:
        raise SystemExit(f"no case {', '.join(unknown)}; there are: {', '.join(known)}")
    return {n: make for n, make in known.items() if any(fnmatch(n, p) for p in patterns)}


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--data", metavar="FOLDER", help="the data files (or LINGP_DATA)")
    parser.add_argument("--cases", metavar="NAME,...", help="these cases only; patterns as mlp-*")
    parser.add_argument("--splits", metavar="A:B", default="0:10", help="from A to before B")
    parser.add_argument("--again", action="store_true", help="results that are there, too")
    parser.add_argument("--raw", type=Path, help="the folder of results")
    parser.add_argument("--nets", type=Path, help="the folder of trained networks")
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        arguments.splits = "0:1"
    with tempfile.TemporaryDirectory() as scratch:
        arguments.raw = arguments.raw or Path(scratch) / "raw"
        arguments.nets = arguments.nets or Path(scratch) / "nets"
        arguments.where = datasets.folder(arguments.data)
        wanted = command_line.chosen(contenders(), arguments)
        with Field(wanted, command_line.cache(arguments), arguments.threads) as field:
            for name, make in chosen_cases(arguments).items():
                for index in datasets.chosen_splits(arguments):
                    run_split(field, name, index, make, arguments)
            known = [*cases.CASES, *cases.QUICK_CASES]
            made = reports.report(reports.read(arguments.raw, known), field)
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()
