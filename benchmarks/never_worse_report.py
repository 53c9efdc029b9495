"""The results of `never_worse.py`: files, and the report of all of them."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import scores
from harness import table
from harness.rounds import Field

NETWORK = "network"
LIMITS = (0.01, 0.03)  # nats a row worse than the network: marked by one and two signs
_SCORES = ("ece", "accuracy", "auroc")
_STEPS = ("fit", "tune", "predict")

Found = dict[str, Any]  # numbers by name; "failure", or "warnings" and "inference"
Results = dict[str, dict[str, dict[int, Found]]]  # case, contender, split


def write(file: Path, found: Found) -> None:
    """Whole, or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(found, indent=1) + "\n")
    part.replace(file)


def read(folder: Path, order: Sequence[str]) -> Results:
    """All results in a folder; cases in this order, contenders as they are found, ours last."""
    results: Results = {}
    for name in order:
        for file in sorted((folder / name).glob("*/*.json"), key=lambda f: _place(f.stem)):
            splits = results.setdefault(name, {}).setdefault(file.stem, {})
            splits[int(file.parent.name)] = json.loads(file.read_text())
    return results


def _place(contender: str) -> tuple[int, str]:
    first = (NETWORK, "temperature", "laplace-torch last")
    named = first.index(contender) if contender in first else len(first)
    return named + contender.startswith("lingp"), contender


def values(splits: dict[int, Found], score: str) -> list[float]:
    """One score over the splits that have it."""
    return [found[score] for found in splits.values() if score in found]


def excess(results: Results, name: str, contender: str) -> list[float]:
    """NLL minus that of the network, on the splits that both have."""
    alone = results[name].get(NETWORK, {})
    return [
        found["nll"] - alone[index]["nll"]
        for index, found in results[name][contender].items()
        if "nll" in found and "nll" in alone.get(index, {})
    ]


def mark(differences: Sequence[float]) -> str:
    """By how much the mean over splits is worse than the network."""
    if not differences:
        return ""
    mean = statistics.fmean(differences)
    passed = [limit for limit in LIMITS if mean > limit]
    return f"> {max(passed):g}" if passed else ""


def _median(found: Sequence[float], digits: str) -> str:
    return f"{statistics.median(found):{digits}}" if found else "–"


def _rows(results: Results) -> Iterator[list[str]]:
    for name, contenders in results.items():
        for contender, splits in contenders.items():
            fine = values(splits, "nll")
            if not fine:
                yield [name, contender, "failed", *["–"] * 14]
                continue
            differences = excess(results, name, contender) if contender != NETWORK else []
            kinds = [kind for found in splits.values() for kind in found.get("inference", ())]
            warned = sum(bool(found.get("warnings")) for found in splits.values())
            yield [
                name,
                contender,
                str(len(fine)),
                scores.cell(fine),
                scores.cell(differences),
                mark(differences),
                *(scores.cell(values(splits, score)) for score in _SCORES),
                *(_median(values(splits, f"seconds {step}"), ".2f") for step in _STEPS),
                _median(values(splits, "precision"), ".3g"),
                _median(values(splits, "mean_scale"), ".3g"),
                _median(values(splits, "temperature"), ".3g"),
                ", ".join(dict.fromkeys(kinds)).replace("_", " "),
                str(warned) if warned else "",
            ]


def score_table(results: Results) -> str:
    """One line for each case and contender."""
    header = [
        "case",
        "contender",
        "splits",
        "NLL",
        "- network",
        "worse",
        "ECE",
        "accuracy",
        "AUROC outside",
        *(f"{step} (s)" for step in _STEPS),
        "precision",
        "mean scale",
        "temperature",
        "inference",
        "warned",
    ]
    return table.markdown_table(header, list(_rows(results)))


def summary(results: Results) -> str:
    """For each contender on how many cases, and on how many single splits, it is worse."""
    names = dict.fromkeys(c for contenders in results.values() for c in contenders)
    rows = []
    for contender in sorted((n for n in names if n != NETWORK), key=_place):
        found = {
            name: differences
            for name in results
            if contender in results[name] and (differences := excess(results, name, contender))
        }
        means = {name: statistics.fmean(differences) for name, differences in found.items()}
        single = [d for differences in found.values() for d in differences]
        if not single:
            continue
        worst = max(means, key=means.__getitem__)
        rows.append(
            [
                contender,
                str(len(means)),
                *(str(sum(mean > limit for mean in means.values())) for limit in LIMITS),
                *(f"{sum(d > limit for d in single)} of {len(single)}" for limit in LIMITS),
                f"{statistics.fmean(means.values()):+.3f}",
                f"{means[worst]:+.3f} ({worst})",
                ", ".join(name for name, mean in means.items() if mean > LIMITS[-1]) or "–",
            ]
        )
    limits = [f"> {limit:g}" for limit in LIMITS]
    header = ["contender", "cases", *limits, *(f"splits {limit}" for limit in limits)]
    header += ["mean", "worst case", f"cases {limits[-1]}"]
    return table.markdown_table(header, rows)


def remarks(results: Results) -> str:
    """What failed and what was warned of, each with the cases and how often."""
    failed: dict[str, Counter[str]] = {}
    warned: dict[str, Counter[str]] = {}
    for name, contenders in results.items():
        for contender, splits in contenders.items():
            for found in splits.values():
                if why := found.get("failure"):
                    failed.setdefault(f"{contender} failed: {why}", Counter())[name] += 1
                for words in found.get("warnings", ()):
                    warned.setdefault(f"{contender} warned: {words} ...", Counter())[name] += 1
    return "\n".join(
        f"- {what} ({', '.join(f'{name}: {count}' for name, count in counts.items())})"
        for what, counts in {**failed, **warned}.items()
    )


def report(results: Results, field: Field) -> str:
    """The whole report."""
    sections = [
        "# Is a classifier's Gaussian process worse than its network?",
        table.machine(field, {}),
        table.versions(field.versions),
        "NLL minus that of the network: on how many cases (means over splits) and on how many "
        "single splits it is larger than a limit.",
        summary(results),
        "Mean ± standard error over splits; processor's seconds, precision, mean scale and "
        "temperature: median.",
        score_table(results),
        remarks(results),
    ]
    return "\n\n".join(section for section in sections if section)
