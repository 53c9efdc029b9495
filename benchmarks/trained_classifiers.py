"""Classifiers that regularise themselves: training with the evidence against validation rows.

Nine sets with ten stored splits each (70/15/15); inputs standardised with training statistics; an
MLP of tanh units (``--hidden 50``, or ``--hidden 50,50``) from the same initial weights for all,
2400 steps of Adam (1e-2 to 1e-5, cosine), full batch up to 2048 rows, else 256 rows, in float64:

    lingp                    train_with_evidence(net, X, y, likelihood="categorical"), on training
                             and validation rows: it needs none to tune by
    lingp train              the same on the training rows only, for a like-for-like comparison
    lingp valid (retrained)  that, its prior variances times the factor that predicts the validation
                             rows best; retrained: the first, with this factor (skipped where rows
                             times classes exceed ``--valid-rows``: each try takes a posterior)
    MAP                      weight decay from a grid of 10, chosen on the validation rows
    MAP retrained            with the decay found, on training and validation rows
    laplace-torch trained    marglik_training on training and validation rows, for each structure of
                             Hessian and prior (contenders/trained_laplace.py)
    laplace-torch tuned      the MAP network, then Laplace, fit, optimize_prior_precision by its
                             default (evidence) or by grid search on the validation rows

"network" after a name is the softmax of the network that was trained, without a posterior; "mc"
and "bridge" are laplace-torch's other links. A set is won where lingp's mean test NLL over the
splits is below that of the best rival; the rival is chosen by the same test NLL, in its favour.

    python benchmarks/trained_classifiers.py --sets glass --raw glass.json
    python benchmarks/trained_classifiers.py --splits 0:0 --add glass.json,vehicle.json
    python benchmarks/trained_classifiers.py --quick --only lingp,MAP   # no peer's environment
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import datasets
import networks
import numpy as np
import peers
import scores
import torch
from harness import command_line, table
from harness.records import Records, Scores, earlier, save
from harness.rounds import Contender, Field, Result, Schedule

SETS = datasets.CLASSIFICATION
QUICK_SETS = ("glass",)
OURS, MAP, PEER = "lingp", "MAP", "laplace-torch"
OURS_TRAIN, OURS_VALID = f"{OURS} train", f"{OURS} valid retrained"
SCORES = ("nll", "ece", "brier", "accuracy")
FULL_BATCH, BATCH, STEPS, QUICK_STEPS = 2048, 256, 2400, 80
_SECONDS = 7200.0


def contenders() -> list[Contender]:
    """MAP first: the peer's tuned structures start from its network."""
    made = [
        Contender(MAP, "contenders.trained_map"),
        Contender(OURS, "contenders.trained_lingp"),
    ]
    for structure, prior in (
        ("kron", "layerwise"),
        ("kron", "scalar"),
        ("diag", "layerwise"),
        ("full", "scalar"),
    ):
        options = {
            "structure": structure,
            "prior": prior,
            "rows": "all",
            "estimates": 24 if structure == "full" else 240,
        }
        name = f"{PEER} trained {structure} {prior}"
        made.append(Contender(name, "contenders.trained_laplace", peers.LAPLACE, options))
    for structure in ("kron", "diag", "full"):
        for tuning, word in (("marglik", "evidence"), ("grid", "valid")):
            options = {"structure": structure, "tuning": tuning}
            name = f"{PEER} tuned {structure} {word}"
            made.append(Contender(name, "contenders.classify_laplace", peers.LAPLACE, options))
    return made


def run_split(
    field: Field, data: datasets.Split, seed: int, arguments: argparse.Namespace
) -> tuple[dict[str, Scores], dict[str, str]]:
    """Scores of every method on one split, and the reasons of those that failed."""
    hidden = [int(width) for width in arguments.hidden.split(",")]
    sizes = [data.train.x.shape[1], *hidden, data.num_classes]
    torch.manual_seed(seed)
    architecture = {"kind": "mlp", "sizes": sizes, "activation": "tanh"}
    start = networks.weights(networks.build(architecture))
    rows = len(data.train.x) + len(data.valid.x)
    case = {
        "architecture": architecture,
        "dtype": "float64",
        "steps": QUICK_STEPS if arguments.quick else STEPS,
        "batch_size": 0 if rows <= FULL_BATCH else BATCH,  # 0: all rows
        "updates": 2 if arguments.quick else arguments.updates,
        "validate": rows * data.num_classes <= arguments.valid_rows,
        "grid_stride": 3 if arguments.quick else 1,
        "batch": 64,
    }
    arrays = {
        "x": data.train.x,
        "y": data.train.y,
        "valid_x": data.valid.x,
        "valid_y": data.valid.y,
        "test_x": data.test.x,
    }
    found: dict[str, Scores] = {}
    failed: dict[str, str] = {}

    def compete(names: Sequence[Contender], weights: Mapping[str, np.ndarray]) -> dict[str, Result]:
        results = field.answers(case, {**arrays, **weights}, Schedule(timeout=_SECONDS), names)
        for name, result in results.items():
            if result.failure:
                failed[name] = result.failure
            else:
                keep(name, result, data.test.y, found, failed)
        return results

    first = [c for c in field.contenders if " tuned " not in c.name]
    results = compete(first, start)
    after = [c for c in field.contenders if c not in first]
    if after and MAP in results and not results[MAP].failure:
        weights = {k: v for k, v in results[MAP].arrays.items() if k.startswith("net.")}
        compete(after, weights)
    return found, failed


def keep(
    name: str,
    result: Result,
    y: np.ndarray,
    found: dict[str, Scores],
    failed: dict[str, str],
) -> None:
    """Score every kind of prediction a contender made."""
    numbers = {k: float(v) for k, v in result.arrays.items() if v.ndim == 0}
    kinds = {k: v for k, v in result.arrays.items() if v.ndim == 2 and not k.startswith("net.")}
    for index, (kind, probabilities) in enumerate(kinds.items()):
        label = name if index == 0 else f"{name} {kind}"
        broken = int((~(probabilities >= 0)).any(axis=1).sum())  # nan, or below zero
        if broken:
            failed[label] = f"no probabilities for {broken} of {len(probabilities)} rows"
            continue
        shared = {"seconds": result.seconds[0]} | numbers
        found[label] = {
            **scores.classification(probabilities, y),
            **{k: numbers.get(f"{k} {kind}", shared[k]) for k in ("precision", "seconds")},
        }


def values(records: Records, name: str, method: str, score: str) -> list[float]:
    """One score of one method on one set, over the splits that have it, in their order."""
    splits = records[name]
    return [splits[i][method][score] for i in sorted(splits) if method in splits[i]]


def methods_of(records: Records) -> list[str]:
    """All methods, in the order in which they came."""
    found = (method for splits in records.values() for split in splits.values() for method in split)
    return list(dict.fromkeys(found))


def rivals(records: Records, name: str, ours: str, kinds: Sequence[str]) -> list[str]:
    """Methods of these kinds that have all splits we have."""
    number = len(values(records, name, ours, "nll"))
    return [
        method
        for method in methods_of(records)
        if method.startswith(tuple(kinds)) and len(values(records, name, method, "nll")) == number
    ]


def difference(records: Records, name: str, score: str, ours: str, rival: str) -> tuple[str, str]:
    """Ours minus a rival, mean ± standard error of the paired differences; and a word for it."""
    pairs = zip(
        values(records, name, ours, score), values(records, name, rival, score), strict=True
    )
    mean, error = scores.mean_and_error([one - other for one, other in pairs])
    word = "won" if mean < 0 else "within s.e." if mean <= error else "lost"
    return f"{mean:+.4f} ± {error:.4f}", word


def comparison(records: Records, ours: str, kinds: Sequence[str]) -> str:
    """Per set ours minus the best rival of these kinds, paired over splits, by NLL and by ECE."""
    rows = []
    won = {"nll": 0, "ece": 0}
    for name in records:
        names = rivals(records, name, ours, kinds)
        if not values(records, name, ours, "nll") or not names:
            continue
        row = [name, str(len(values(records, name, ours, "nll")))]
        for score in won:
            best = min(names, key=lambda m: statistics.fmean(values(records, name, m, score)))
            shown, word = difference(records, name, score, ours, best)
            won[score] += word == "won"
            row += [best, shown, word]
            if score == "nll":
                row.append(difference(records, name, "ece", ours, best)[0])
        rows.append(row)
    if not rows:
        return ""
    header = ["set", "splits", "best by NLL", "NLL", "", "its ECE", "best by ECE", "ECE", ""]
    lines = [
        f"{ours} minus the best of {', '.join(kinds)}, each chosen by its test scores:",
        "",
        table.markdown_table(header, rows),
        "",
        f"- {ours}: ahead by NLL on {won['nll']} of {len(rows)} sets, "
        f"by ECE on {won['ece']} of {len(rows)}",
    ]
    return "\n".join(lines)


def score_table(records: Records) -> str:
    """Mean ± standard error over splits, one line for each set and method."""
    rows = []
    for name in records:
        for method in methods_of(records):
            found = {score: values(records, name, method, score) for score in SCORES}
            if not found["nll"]:
                continue
            precision = statistics.median(values(records, name, method, "precision"))
            seconds = statistics.median(values(records, name, method, "seconds"))
            cells = (scores.cell(found[score]) for score in SCORES)
            extra = [f"{precision:.3g}", f"{seconds:.1f}"]
            rows.append([name, method, str(len(found["nll"])), *cells, *extra])
    header = ["set", "method", "splits", "NLL", "ECE", "Brier", "accuracy", "τ (median)", "s"]
    return table.markdown_table(header, rows)


def report(
    records: Records,
    failures: Mapping[str, str],
    field: Field,
    arguments: argparse.Namespace,
    seconds: float,
) -> str:
    """The whole report."""
    tuned, trained = f"{PEER} tuned", f"{PEER} trained"
    sections = [
        f"# Classifiers trained with the evidence: hidden layers {arguments.hidden}",
        table.machine(field, {}),
        table.versions({name.split(" ")[0]: found for name, found in field.versions.items()}),
        f"Mean ± standard error over splits; s: median seconds of training, tuning and prediction "
        f"together. All: {seconds:.0f} s.",
        score_table(records),
        comparison(records, OURS, (MAP, tuned, trained)),
        comparison(records, OURS, (MAP,)),
        comparison(records, OURS, (trained,)),
        comparison(records, OURS, (tuned,)),
        comparison(records, OURS_TRAIN, (tuned,)),
        comparison(records, OURS_VALID, (MAP, tuned, trained)),
        comparison(records, f"{OURS} network", (MAP,)),
        "\n".join(f"- {name} failed: {why}" for name, why in failures.items()),
    ]
    return "\n\n".join(section for section in sections if section)


def main() -> None:
    parser = command_line.parser(__doc__)
    datasets.add_flags(parser, splits="0:10")
    parser.add_argument(
        "--hidden", metavar="WIDTH,...", default="50", help="widths of hidden layers (50)"
    )
    parser.add_argument("--updates", type=int, default=8, help="lingp's hyperparameter steps (8)")
    parser.add_argument(
        "--valid-rows",
        type=int,
        default=6000,
        help="rows times classes up to which lingp searches the factor that suits validation rows",
    )
    parser.add_argument("--raw", type=Path, help="write every number to this JSON file")
    parser.add_argument(
        "--add", metavar="FILE,...", default="", help="report what these JSON files hold as well"
    )
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where = datasets.folder(arguments.data)
    if arguments.quick:
        arguments.splits = "0:1"
        arguments.sets = arguments.sets or ",".join(QUICK_SETS)
    start = time.perf_counter()
    records = earlier(arguments.add)
    failures: dict[str, str] = {}
    chosen = command_line.chosen(contenders(), arguments)
    with Field(chosen, command_line.cache(arguments), arguments.threads) as field:
        for name in datasets.chosen_sets(SETS, arguments):
            for index in datasets.chosen_splits(arguments):
                splits = records.setdefault(name, {})
                data = datasets.classification(where, name, index)
                found, failed = run_split(field, data, index, arguments)
                splits[index] = splits.get(index, {}) | found
                failures |= {f"{method} on {name} {index}": why for method, why in failed.items()}
                save(records, arguments.raw)
        made = report(records, failures, field, arguments, time.perf_counter() - start)
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()
