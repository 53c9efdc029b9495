"""UCI regression: networks trained with the evidence, beside published results.

Standard splits (20 of 90/10; protein 5). Inputs and targets standardised with the training rows'
statistics; test log-likelihood and RMSE are in the units of the data. Networks of GELU units, sizes
in `HIDDEN`; everything else is what `train_with_evidence` does when nothing is set:

    homoscedastic           train_with_evidence(net, X, y).gp.predict(X_test): Gaussian noise
    network's mean          the same network, with its own outputs as mean instead of a refitted one
    heteroscedastic         likelihood=Heteroscedastic(), two outputs, mixture predictive
    by evidence             on each split the kind of noise whose evidence is larger

RMSE is that of the predictive median (Gaussian noise: the mean; a mixture's mean is that of its
tails). Seconds are of training, hyperparameters and prediction. Published rows and their sources:
`uci_published.py`. They differ in protocol, and the best of them is stated twice: of those on the
same splits, and of all. 240 of wine's 1599 rows and 1711 of protein's 45730 are duplicates, so
copies of some test rows are in every training set, for every method.

    python benchmarks/uci.py --output uci.md --raw uci.json
    python benchmarks/uci.py --sets naval --splits 0:5 --raw naval.json     # one at a time
    python benchmarks/uci.py --splits 0:0 --add uci.json,naval.json         # and then joined
"""

from __future__ import annotations

import csv
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import datasets
import networks
import numpy as np
import scores
import torch
import uci_published as published
from harness import command_line, table
from harness.records import Records, Scores, earlier, save
from torch import Tensor

from lingp.inference import Mean
from lingp.likelihoods import Gaussian, Heteroscedastic, Likelihood
from lingp.models import LinearizedGP
from lingp.training import EvidenceTraining, train_with_evidence

SETS = published.SETS
HIDDEN = {"boston": [50], "wine": [50]}
OTHERWISE = [50, 50]
SPLITS = {"protein": 5}
QUICK_SETS, QUICK = ("yacht",), {"steps": 60, "updates": 2}
HOMOSCEDASTIC, NETWORK, HETEROSCEDASTIC = "homoscedastic", "network's mean", "heteroscedastic"
CHOSEN = "by evidence"
RUN = (HOMOSCEDASTIC, NETWORK, HETEROSCEDASTIC)
ROWS = (*RUN, CHOSEN)
TARGETS = {"yacht": 0.0, "energy": -0.52, "concrete": -2.80, "boston": -2.39}
WINS, SMALL, SECONDS = 7, 2000, 10.0


def trained(
    split: datasets.Split,
    hidden: Sequence[int],
    likelihood: Likelihood,
    outputs: int,
    seed: int,
    options: dict[str, int],
) -> EvidenceTraining:
    """One network, trained with the evidence; nothing set but the likelihood."""
    torch.manual_seed(seed)
    sizes = [split.train.x.shape[1], *hidden, outputs]
    network = networks.build({"kind": "mlp", "sizes": sizes}).double()
    x, y = torch.from_numpy(split.train.x), torch.from_numpy(split.train.y).unsqueeze(-1)
    return train_with_evidence(network, x, y, likelihood=likelihood, progress=False, **options)


def judged(gp: LinearizedGP, split: datasets.Split) -> Scores:
    """Test log-likelihood and RMSE in the units of the data."""
    x, y = torch.from_numpy(split.test.x), torch.from_numpy(split.test.y).unsqueeze(-1)
    prediction = gp.predict(x, progress=False)
    return {
        "log_likelihood": prediction.log_prob(y).mean().item() - math.log(split.target_std),
        "rmse": _rmse(prediction.median, y) * split.target_std,
    }


def _rmse(found: Tensor, y: Tensor) -> float:
    return (found - y).square().mean().sqrt().item()


def with_mean(done: EvidenceTraining, split: datasets.Split, mean: Mean) -> LinearizedGP:
    """The trained network's GP with another mean."""
    x, y = torch.from_numpy(split.train.x), torch.from_numpy(split.train.y).unsqueeze(-1)
    gp = LinearizedGP(done.net, done.likelihood, prior=done.prior, mean=mean)
    return gp.fit(x, y, progress=False)


def run_split(
    split: datasets.Split,
    hidden: Sequence[int],
    seed: int,
    options: dict[str, int],
    rows: Sequence[str],
) -> dict[str, Scores]:
    """Scores of the rows asked for on one split."""
    found: dict[str, Scores] = {}
    if HOMOSCEDASTIC in rows or NETWORK in rows:
        start = time.perf_counter()
        done = trained(split, hidden, Gaussian(), 1, seed, options)
        found[HOMOSCEDASTIC] = judged(done.gp, split)
        seconds = time.perf_counter() - start
        found[NETWORK] = judged(with_mean(done, split, "network"), split)
        evidence = done.history[-1].evidence
        for row in (HOMOSCEDASTIC, NETWORK):
            found[row] |= {"seconds": seconds, "evidence": evidence}
    if HETEROSCEDASTIC in rows:
        start = time.perf_counter()
        done = trained(split, hidden, Heteroscedastic(), 2, seed, options)
        found[HETEROSCEDASTIC] = judged(done.gp, split)
        found[HETEROSCEDASTIC] |= {
            "seconds": time.perf_counter() - start,
            "evidence": done.history[-1].evidence,
        }
    return found


def num_rows(where: Path, name: str) -> int:
    """Of a data set, training and test rows together."""
    with np.load(where / f"uci_{name}.npz", allow_pickle=False) as file:
        return len(file["y"])


def with_choice(records: Records) -> Records:
    """With a row for the kind of noise of larger evidence, where both were run."""
    made: Records = {}
    for name, splits in records.items():
        made[name] = {}
        for index, found in splits.items():
            kinds = [found[row] for row in (HOMOSCEDASTIC, HETEROSCEDASTIC) if row in found]
            best = max(kinds, key=lambda scores: scores["evidence"], default={})
            seconds = sum(scores["seconds"] for scores in kinds)
            chosen = {CHOSEN: {**best, "seconds": seconds}} if len(kinds) == 2 else {}
            made[name][index] = found | chosen
    return made


def per_split(where: Path) -> dict[tuple[str, int], float]:
    """Published test log-likelihoods of MC-dropout on each standard split, where the file is."""
    file = where / "ref_mcdropout_gal2018_per_split.csv"
    if not file.is_file():
        return {}
    with file.open() as lines:
        return {
            (row["dataset"], int(row["split"])): float(row["test_ll"])
            for row in csv.DictReader(lines)
        }


def paired(records: Records, published_splits: dict[tuple[str, int], float]) -> list[str]:
    """Mean difference to MC-dropout on the very splits that were run, whichever they are."""
    lines = []
    for name, splits in records.items():
        for row in ROWS:
            differences = [
                found[row]["log_likelihood"] - published_splits[name, index]
                for index, found in splits.items()
                if row in found and (name, index) in published_splits
            ]
            if differences:
                mean, error = scores.mean_and_error(differences)
                shown = f"{mean:+.3f}" if math.isnan(error) else f"{mean:+.3f} ± {error:.3f}"
                lines.append(f"- {name}, {row}: {shown} on {len(differences)} splits")
    return lines


def values(records: Records, name: str, row: str, score: str) -> list[float]:
    """One score of one row on one set, over the splits that have it."""
    return [found[row][score] for found in records[name].values() if row in found]


def _digits(name: str, score: str) -> int:
    """Of a cell: RMSE of sets with small targets needs more."""
    return {"naval": 6, "kin8nm": 4}.get(name, 3) if score == "rmse" else 3


def _published_cell(row: published.Published, name: str, score: str) -> str:
    value = getattr(row, score).get(name)
    if value is None:
        return "–"
    mean, error = value
    return f"{mean:.2f}" if error is None else f"{mean:.2f} ± {error:.2f}"


def score_table(records: Records, score: str) -> str:
    """Our rows and the published ones, one column for each set."""
    names = list(records)
    ours = [
        [
            f"lingp {row}",
            "yes",
            *(scores.cell(values(records, n, row, score), _digits(n, score)) for n in names),
        ]
        for row in ROWS
    ]
    theirs = [
        [p.name, "yes" if p.same_splits else "no", *(_published_cell(p, n, score) for n in names)]
        for p in published.PUBLISHED
        if any(n in getattr(p, score) for n in names)
    ]
    return table.markdown_table(["method", "same splits", *names], [*ours, *theirs])


def effort_table(records: Records) -> str:
    """Splits, networks, seconds per split."""
    rows = []
    for name, splits in records.items():
        seconds = [
            values(records, name, row, "seconds") for row in (HOMOSCEDASTIC, HETEROSCEDASTIC)
        ]
        rows.append(
            [
                name,
                "-".join(map(str, HIDDEN.get(name, OTHERWISE))),
                f"{len(splits)} of {SPLITS.get(name, 20)}",
                *(f"{statistics.median(s):.1f}" if s else "–" for s in seconds),
            ]
        )
    header = ["set", "hidden units", "splits", "s homoscedastic", "s heteroscedastic"]
    return table.markdown_table(header, rows)


def verdicts(records: Records, sizes: dict[str, int]) -> list[str]:
    """Targets beside what was found."""
    lines: list[str] = []
    ours = {
        name: {
            row: statistics.fmean(found)
            for row in ROWS
            if (found := values(records, name, row, "log_likelihood"))
        }
        for name in records
    }
    for name, target in TARGETS.items():
        if name not in ours:
            continue
        for row, value in ours[name].items():
            word = "met" if value >= target else "not met"
            lines.append(f"- {name}, {row}: **{value:.3f}** (target >= {target:g}: {word})")
    for same, words in ((True, "on the same splits"), (False, "of all rows")):
        for row in ROWS:
            ahead = [
                name
                for name in records
                if ours[name].get(row, -math.inf)
                > published.best(name, same_splits=same).log_likelihood[name][0]
            ]
            word = "met" if len(ahead) >= WINS else "not met"
            lines.append(
                f"- {row}: ahead of the best published row {words} on {len(ahead)} of "
                f"{len(records)} ({', '.join(ahead) or 'none'}) (target >= {WINS} of {len(SETS)}: "
                f"{word})"
            )
    for name in records:
        if sizes.get(name, 0) >= SMALL:
            continue
        for row in (HOMOSCEDASTIC, HETEROSCEDASTIC):
            if found := values(records, name, row, "seconds"):
                value = statistics.median(found)
                word = "met" if value < SECONDS else "not met"
                lines.append(
                    f"- {name}, {row}: {value:.1f} s per split (target < {SECONDS:g} s: {word})"
                )
    return lines


def best_table(records: Records) -> str:
    """Which published row is the best one on each set, among which rows."""
    rows = []
    for name in records:
        cells = []
        for same in (True, False):
            found = published.best(name, same_splits=same)
            cells.append(f"{found.log_likelihood[name][0]:.2f} ({found.name})")
        rows.append([name, *cells])
    return table.markdown_table(["set", "best on the same splits", "best of all rows"], rows)


def report(records: Records, where: Path, quick: bool, seconds: float) -> str:
    """The whole report."""
    records = with_choice(records)
    sizes = {name: num_rows(where, name) for name in records}
    differences = paired(records, per_split(where))
    sources: dict[str, list[str]] = {}
    for p in published.PUBLISHED:
        sources.setdefault(p.source, []).append(p.name + (f" ({p.note})" if p.note else ""))
    sections = [
        "# UCI regression: networks trained with the evidence",
        f"{table.processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}. "
        f"lingp: mean ± standard error over splits. All: {seconds:.0f} s.",
        effort_table(records),
        "Test log-likelihood, in the units of the data:",
        score_table(records, "log_likelihood"),
        "RMSE, of the predictive median:",
        score_table(records, "rmse"),
        best_table(records),
        "" if quick else "\n".join(verdicts(records, sizes)),
        "Log-likelihood less that of MC-dropout, 2018, split by split:\n\n" + "\n".join(differences)
        if differences
        else "",
        "Sources:\n\n" + "\n".join(f"- {', '.join(who)}: {what}" for what, who in sources.items()),
    ]
    return "\n\n".join(section for section in sections if section)


def main() -> None:
    parser = command_line.parser(__doc__)
    datasets.add_flags(parser, splits="0:20")
    parser.add_argument("--raw", type=Path, help="write every number to this JSON file")
    parser.add_argument(
        "--add", metavar="FILE,...", default="", help="report what these JSON files hold as well"
    )
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where = datasets.folder(arguments.data)
    if arguments.quick:
        arguments.sets, arguments.splits = arguments.sets or ",".join(QUICK_SETS), "0:1"
    rows = arguments.only.split(",") if arguments.only else RUN
    if unknown := sorted(set(rows) - set(RUN)):
        raise SystemExit(f"no row {', '.join(unknown)}; there are: {', '.join(RUN)}")
    start = time.perf_counter()
    added = earlier(arguments.add)
    records = {name: added[name] for name in SETS if name in added}
    for name in datasets.chosen_sets(SETS, arguments):
        for index in datasets.chosen_splits(arguments):
            if index >= SPLITS.get(name, 20):
                continue
            split = datasets.regression(where, name, index)
            options = QUICK if arguments.quick else {}
            found = run_split(split, HIDDEN.get(name, OTHERWISE), index, options, rows)
            kept = records.setdefault(name, {})
            kept[index] = kept.get(index, {}) | found
            save(records, arguments.raw)
    records = {name: records[name] for name in SETS if name in records}
    made = report(records, where, arguments.quick, time.perf_counter() - start)
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()
