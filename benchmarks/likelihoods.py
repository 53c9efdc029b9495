"""Calibration of classifiers: the network alone (MAP), lingp, laplace-torch, on one network each.

Six sets with ten stored splits each; inputs standardised with training statistics; an MLP with two
hidden layers of 50 tanh units, trained by full-batch Adam (1e-2 to 1e-5, cosine, 1000 steps) on the
training rows, with a weight decay that is a prior of precision 1 (``--overfit``: none). Every
contender gets the same trained network, in float64:

    MAP              softmax of the network's outputs
    lingp            LinearizedGP(net, "categorical").fit(X, y), .optimize_hyperparameters(),
                     .predict(X_test).probs: no option set
    laplace-torch    full, kron, diag, gp: .fit, .optimize_prior_precision(), la(X_test), as
                     contenders/classify_laplace.py writes it down: no option set either

Rows with "valid" chose the prior precision on the validation rows instead: laplace-torch's grid
search (21 values from 1e-4 to 1e4, negative log likelihood), which it recommends for gp, and
lingp's ``validation=``. They know more than the others, and are compared among themselves;
``--validation`` adds the other structures to them.

    python benchmarks/likelihoods.py --output likelihoods.md --raw likelihoods.json
    python benchmarks/likelihoods.py --only lingp --add likelihoods.json    # the peers as they were
    python benchmarks/likelihoods.py --quick --only lingp    # no other environment needed
    python benchmarks/likelihoods.py --sets glass --splits 0:1 --as-shipped    # minutes
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import datasets
import networks
import peers
import scores
import torch
from harness import command_line, table
from harness.records import Records, Scores, earlier, save
from harness.rounds import Contender, Field, Schedule
from torch import nn
from training import train

SETS = ("ionosphere", "glass", "vehicle", "australian", "waveform", "digits")
QUICK_SETS = ("glass", "ionosphere")
STRUCTURES = ("full", "kron", "diag", "gp")
MAP, OURS, PEER = "MAP", "lingp", "laplace-torch"
VALIDATION = "valid"
SCORES = ("nll", "brier", "ece", "accuracy")
STEPS, QUICK_STEPS, BATCH = 1000, 100, 64
_SECONDS = 1800.0


def contenders(validation: bool) -> list[Contender]:
    """Ours and laplace-torch's structures, tuned by evidence; some or all by validation too."""
    made = [
        Contender(OURS, "contenders.classify_lingp", options={"tuning": "default"}),
        Contender(
            f"{OURS} {VALIDATION}", "contenders.classify_lingp", options={"tuning": "validation"}
        ),
    ]
    for tuning, suffix in (("marglik", ""), ("grid", f" {VALIDATION}")):
        for structure in STRUCTURES if validation or not suffix else ("gp",):
            options = {"structure": structure, "tuning": tuning}
            name = f"{PEER} {structure}{suffix}"
            made.append(Contender(name, "contenders.classify_laplace", peers.LAPLACE, options))
    return made


def trained_network(
    data: datasets.Split, sizes: Sequence[int], seed: int, steps: int, precision: float
) -> nn.Module:
    """The network all contenders get."""
    torch.manual_seed(seed)
    network = networks.build({"kind": "mlp", "sizes": list(sizes), "activation": "tanh"})
    x, y = torch.from_numpy(data.train.x).float(), torch.from_numpy(data.train.y)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, y, reduction="sum")

    return train(network, loss, x, steps=steps, precision=precision).double()


def run_split(
    field: Field, data: datasets.Split, seed: int, arguments: argparse.Namespace
) -> tuple[dict[str, Scores], dict[str, str]]:
    """Scores of every method on one split, and the reasons of those that failed."""
    sizes = [data.train.x.shape[1], 50, 50, data.num_classes]
    steps, decay = QUICK_STEPS if arguments.quick else STEPS, 0.0 if arguments.overfit else 1.0
    network = trained_network(data, sizes, seed, steps, decay)
    with torch.no_grad():
        alone = torch.softmax(network(torch.from_numpy(data.test.x)), dim=-1).numpy()
    case = {
        "architecture": {"kind": "mlp", "sizes": sizes, "activation": "tanh"},
        "dtype": "float64",
        "batch": BATCH,
        "as_shipped": arguments.as_shipped,
    }
    arrays = {
        **networks.weights(network),
        "x": data.train.x,
        "y": data.train.y,
        "valid_x": data.valid.x,
        "valid_y": data.valid.y,
        "test_x": data.test.x,
    }
    found, failed = {MAP: scores.classification(alone, data.test.y)}, {}
    for name, result in field.answers(case, arrays, Schedule(timeout=_SECONDS)).items():
        if result.failure:
            failed[name] = result.failure
            continue
        precision_found = float(result.arrays.pop("precision"))
        for index, (link, probabilities) in enumerate(result.arrays.items()):
            label = name if index == 0 else f"{name} {link}"
            broken = int((~(probabilities >= 0)).any(axis=1).sum())  # nan, or below zero
            if broken:
                failed[label] = f"no probabilities for {broken} of {len(probabilities)} rows"
                continue
            found[label] = {
                **scores.classification(probabilities, data.test.y),
                "precision": precision_found,
                "seconds": result.seconds[0],
            }
    return found, failed


def values(records: Records, name: str, method: str, score: str) -> list[float]:
    """One score of one method on one set, over the splits that have it."""
    splits = records[name].values()
    return [split[method][score] for split in splits if method in split]


def methods_of(records: Records) -> list[str]:
    """All methods, in the order in which they came."""
    found = (method for splits in records.values() for split in splits.values() for method in split)
    return list(dict.fromkeys(found))


def verdicts(records: Records, ours: str, rivals: Sequence[str]) -> list[str]:
    """Per set the paired difference in NLL to the best rival that has all splits; a count."""
    lines, not_worse, better = [], 0, 0
    for name in records:
        mine = values(records, name, ours, "nll")
        complete = [m for m in rivals if len(values(records, name, m, "nll")) == len(mine)]
        if not complete or not mine:
            continue
        best = min(complete, key=lambda m: statistics.fmean(values(records, name, m, "nll")))
        paired = zip(mine, values(records, name, best, "nll"), strict=True)
        mean, error = scores.mean_and_error([one - other for one, other in paired])
        fine = mean <= (error if error == error else 0.0)
        not_worse, better = not_worse + fine, better + (mean < 0)
        word = "better" if mean < 0 else "no worse within a standard error" if fine else "WORSE"
        lines.append(
            f"- {name}: {ours} - {best} = {mean:+.4f} ± {error:.4f} nats a row: **{word}**"
        )
    if lines:
        met = "met" if not_worse == len(lines) and better > len(lines) / 2 else "not met"
        lines.append(
            f"- {ours}: no worse on {not_worse} of {len(lines)} sets, better on {better} "
            f"(target: no worse on all, better on most: {met})"
        )
    return lines


def score_table(records: Records, methods: Sequence[str]) -> str:
    """Mean ± standard error over splits, one line for each set and method."""
    rows = []
    for name in records:
        for method in methods:
            found = {score: values(records, name, method, score) for score in SCORES}
            if not found["nll"]:
                continue
            extra = ["–", "–"]
            if method != MAP:
                precision = statistics.median(values(records, name, method, "precision"))
                seconds = statistics.median(values(records, name, method, "seconds"))
                extra = [f"{precision:.3g}", f"{seconds:.1f}"]
            rows.append([name, method, *(scores.cell(found[score]) for score in SCORES), *extra])
    header = ["set", "method", "NLL", "Brier", "ECE", "accuracy", "τ (median)", "s (median)"]
    return table.markdown_table(header, rows)


def report(
    records: Records,
    failures: Mapping[str, str],
    field: Field,
    arguments: argparse.Namespace,
    seconds: float,
) -> str:
    """The whole report."""
    methods = methods_of(records)
    links = [m for m in methods if m.endswith((" mc", " bridge"))]
    tuned = [m for m in methods if m.endswith(f" {VALIDATION}")]
    plain = [m for m in methods if m not in links and m not in tuned]

    def of_peer(names: Sequence[str]) -> list[str]:
        return [m for m in names if m.startswith(PEER)]

    trained = "no weight decay" if arguments.overfit else "weight decay as a prior of precision 1"
    sections = [
        f"# Classification: splits {arguments.splits}, network trained with {trained}",
        table.machine(field, {}),
        table.versions({name.split(" ")[0]: found for name, found in field.versions.items()}),
        f"Tuned by evidence, nothing set; mean ± standard error over splits. All: {seconds:.0f} s.",
        score_table(records, plain),
        "\n".join(verdicts(records, OURS, of_peer(plain))),
    ]
    if tuned:
        sections += [
            "Prior precision chosen on the validation rows:",
            score_table(records, tuned),
            "\n".join(verdicts(records, f"{OURS} {VALIDATION}", of_peer(tuned))),
        ]
    if links:
        sections += [
            "laplace-torch's other links:",
            score_table(records, links),
            f"{OURS}, nothing set, against the best of all laplace-torch rows above:",
            "\n".join(verdicts(records, OURS, of_peer(methods))),
        ]
    sections.append("\n".join(f"- {name} failed: {why}" for name, why in failures.items()))
    return "\n\n".join(section for section in sections if section)


def main() -> None:
    parser = command_line.parser(__doc__)
    datasets.add_flags(parser, splits="0:10")
    parser.add_argument("--overfit", action="store_true", help="train without weight decay")
    parser.add_argument(
        "--validation", action="store_true", help="tune every structure on validation rows too"
    )
    parser.add_argument(
        "--as-shipped", action="store_true", help="laplace-torch without our shortcuts: slow"
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
    chosen = command_line.chosen(contenders(arguments.validation), arguments)
    with Field(chosen, command_line.cache(arguments), arguments.threads) as field:
        for name in datasets.chosen_sets(SETS, arguments):
            splits = records.setdefault(name, {})
            for index in datasets.chosen_splits(arguments):
                data = datasets.classification(where, name, index)
                found, failed = run_split(field, data, index, arguments)
                splits[index] = splits.get(index, {}) | found
                failures |= {f"{method} on {name} {index}": why for method, why in failed.items()}
                save(records, arguments.raw)
        made = report(records, failures, field, arguments, time.perf_counter() - start)
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()
