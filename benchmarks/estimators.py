"""lingp's estimators as they come, beside what scikit-learn's users would take otherwise.

Regression: six UCI sets, standard splits (20 of 90/10; airfoil ten folds); everyone sees
standardised inputs and targets. In the units of the data test NLL, RMSE, coverage of central 90 %
intervals and their interval score. Seconds are the processor's, of fit and prediction: what else
the machine does plays no part. 240 of wine's 1599 rows are duplicates, and its targets are whole
numbers: who takes the noise to nothing gains without bound from test rows that are in the training
rows too. "of new rows" is the NLL without them.

    lingp                        LinearizedGPRegressor(random_state=split)
    lingp, heteroscedastic       the same with heteroscedastic=True
    GaussianProcessRegressor     constant x RBF + white noise, a length scale for each input,
                                 normalize_y, length scales of 0.01 to 1e4, noise of 1e-6 to 10, one
                                 start (n_restarts_optimizer=0); Matern: ν = 2.5 instead
    BayesianRidge                defaults
    forest, quantiles            RandomForestRegressor, 200 trees, as a quantile regression forest;
                                 leaf size and floor of the variance out of bag; the density is a
                                 normal with its conditional moments (estimators_forest.py)
    forest, residuals            the same forest, out-of-bag squared error as the variance
    laplace-torch                as its regression example: MAP network (that of lingp's default),
                                 Laplace(net, "regression"), prior and noise by the evidence;
                                 all weights; marglik_training (contenders/tabular_laplace.py)

Classification: nine sets, ten splits, training and validation rows (85 %) to learn from, NLL,
accuracy, ECE, Brier score, seconds:

    lingp                          LinearizedGPClassifier(random_state=split)
    lingp, evidence alone          the same with validation_fraction=None, which differs where 1000
                                   labels or more are learned nearly without error
    GaussianProcessClassifier      constant x RBF, a length scale for each input (one, where inputs
                                   times classes are more than 100), one class against the rest;
                                   of at most 1000 rows, drawn at random
    LogisticRegression             LogisticRegressionCV, C by log loss
    gradient boosting, calibrated  CalibratedClassifierCV(HistGradientBoostingClassifier(), cv=5)

lingp stands where its mean NLL does, pair by pair on the splits that both have: best, within one
standard error of the best (that of the paired difference; that of the best row's mean), or worst.
Targets are for the rows named by a class (others are variants), on five of six sets, eight of nine.

    python benchmarks/estimators.py --task regression --methods peers --raw peers.json
    python benchmarks/estimators.py --task regression --methods lingp --raw lingp.json
    python benchmarks/estimators.py --splits 0:0 --add peers.json,lingp.json   # and joined
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import datasets
import estimators_methods as methods
import estimators_report as reports
import sklearn
import torch
from harness import command_line, table
from harness.records import earlier, save
from harness.rounds import Field
from threadpoolctl import threadpool_limits

REGRESSION = ("airfoil", "concrete", "energy", "yacht", "wine", "boston")
CLASSIFICATION = datasets.CLASSIFICATION
SPLITS = {"airfoil": 10, **dict.fromkeys(CLASSIFICATION, 10)}
TASKS = {
    "regression": (REGRESSION, methods.REGRESSION, reports.REGRESSION, 5),
    "classification": (CLASSIFICATION, methods.CLASSIFICATION, reports.CLASSIFICATION, 8),
}
QUICK_SETS = ("yacht", "glass")
ALL_METHODS = tuple(dict.fromkeys((*methods.REGRESSION, *methods.CLASSIFICATION)))


def chosen_methods(given: str | None) -> list[str]:
    """All, "lingp", "peers", or names with semicolons (some have commas in them)."""
    if given is None:
        return list(ALL_METHODS)
    if given == "lingp":
        return [name for name in ALL_METHODS if name.startswith(methods.OURS)]
    if given == "peers":
        return [name for name in ALL_METHODS if not name.startswith(methods.OURS)]
    names = given.split(";")
    if unknown := sorted(set(names) - set(ALL_METHODS)):
        raise SystemExit(f"no method {'; '.join(unknown)}; there are: {'; '.join(ALL_METHODS)}")
    return names


def run(
    name: str, index: int, where: Path, wanted: Sequence[str], quick: bool, field: Field
) -> tuple[dict[str, reports.Scores], dict[str, str]]:
    """Scores of the methods on one split, and the reasons of those that failed."""
    found: dict[str, reports.Scores] = {}
    failed: dict[str, str] = {}
    regression = name in REGRESSION
    read = datasets.regression if regression else datasets.classification
    work = methods.Work(name, read(where, name, index), index, quick, field)
    for method in wanted:
        try:
            if regression and method in methods.REGRESSION:
                found[method] = methods.scored(methods.REGRESSION[method](work), work.split)
            elif not regression and method in methods.CLASSIFICATION:
                found[method] = methods.classified(methods.CLASSIFICATION[method], work)
        except Exception as error:  # the report says so; the others go on
            failed[method] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found, failed


def report(
    records: reports.Records,
    failures: dict[str, str],
    arguments: argparse.Namespace,
    seconds: float,
) -> str:
    """The whole report."""
    sections = [
        "# Estimators as they come",
        f"{table.processor()}, {arguments.threads} threads, torch {torch.__version__}, "
        f"scikit-learn {sklearn.__version__}. Mean ± standard error over splits; s: median "
        f"seconds of the processor for fit and prediction. All: {seconds:.0f} s.",
    ]
    for task, (sets, rows, kinds, target) in TASKS.items():
        found = {name: records[name] for name in sets if name in records}
        if not found:
            continue
        named = [row for row in rows if row in methods.NAMED]
        sections += [
            f"## {task.capitalize()}",
            reports.score_table(found, list(rows), kinds),
            reports.comparison(found, methods.OURS, named, target),
        ]
        peers = [row for row in rows if not row.startswith(methods.OURS)]
        if "new" in kinds:
            sections.append(reports.comparison(found, methods.OURS, named, score="new"))
        if len(peers) + 1 > len(named):
            sections.append(reports.comparison(found, methods.OURS, [methods.OURS, *peers]))
    sections.append("\n".join(f"- {name} failed: {why}" for name, why in failures.items()))
    return "\n\n".join(section for section in sections if section)


def main() -> None:
    parser = command_line.parser(__doc__)
    datasets.add_flags(parser, splits="0:20")
    parser.add_argument("--task", choices=list(TASKS), help="this task only")
    parser.add_argument(
        "--methods", metavar="NAME;...", help='"lingp", "peers", or names with semicolons'
    )
    parser.add_argument("--raw", type=Path, help="write every number to this JSON file")
    parser.add_argument(
        "--add", metavar="FILE,...", default="", help="report what these JSON files hold as well"
    )
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where = datasets.folder(arguments.data)
    sets = TASKS[arguments.task][0] if arguments.task else (*REGRESSION, *CLASSIFICATION)
    if arguments.quick:
        arguments.splits = "0:1"
        arguments.sets = arguments.sets or ",".join(s for s in QUICK_SETS if s in sets)
    wanted = chosen_methods(arguments.methods)
    names = datasets.chosen_sets(sets, arguments)
    start = time.perf_counter()
    records = earlier(arguments.add)
    failures: dict[str, str] = {}
    contenders = [methods.LAPLACE, methods.LAPLACE_ALL, methods.LAPLACE_ONLINE]
    field = Field(contenders, command_line.cache(arguments), arguments.threads)
    with field, threadpool_limits(arguments.threads):
        # splits outside: a run that is cut short has the same splits of all sets
        for index in datasets.chosen_splits(arguments):
            for name in names:
                if index >= SPLITS.get(name, 20):
                    continue
                found, failed = run(name, index, where, wanted, arguments.quick, field)
                kept = records.setdefault(name, {})
                kept[index] = kept.get(index, {}) | found
                failures |= {f"{method} on {name} {index}": why for method, why in failed.items()}
                save(records, arguments.raw)
                spent = time.perf_counter() - start
                print(f"{spent:.0f} s: {name} {index} {failed or ''}", file=sys.stderr, flush=True)
    made = report(records, failures, arguments, time.perf_counter() - start)
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()
