"""What `sparse.py` reports: a table, a few sentences, a plot.

A record is one run: a dictionary with the set, the method, M, the seed, and its scores. Those of
the exact posterior and of the network alone (MAP) have no M.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import table

OURS, EXACT, MAP = "lingp", "exact", "MAP"

Record = dict[str, Any]


def joined(earlier: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """Records of both; where both have the same run, the new one."""

    def key(record: Record) -> tuple[Any, ...]:
        return tuple(record.get(name) for name in ("set", "method", "M", "seed"))

    return list({key(r): r for r in (*earlier, *new)}.values())


def over_seeds(records: Sequence[Record]) -> list[Record]:
    """One record for each set, method and M: medians over seeds."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if "M" in record:
            key = record["set"], record["method"], record["M"]
            groups.setdefault(key, []).append(record)
    found = []
    for (name, method, size), runs in groups.items():
        numbers = {
            score: statistics.median(run[score] for run in runs)
            for score in runs[0]
            if isinstance(runs[0][score], (int, float)) and score not in ("M", "seed")
        }
        found.append({"set": name, "method": method, "M": size, **numbers})
    return found


def of(records: Sequence[Record], name: str, method: str) -> list[Record]:
    """The records of one method on one set."""
    return [r for r in records if r["set"] == name and r["method"] == method]


def result_table(records: Sequence[Record]) -> str:
    """One line for each set, M and method."""
    names = list(dict.fromkeys(record["set"] for record in records))
    rows = []
    for record in sorted(over_seeds(records), key=lambda r: (names.index(r["set"]), r["M"])):
        (exact,) = of(records, record["set"], EXACT)
        rows.append(
            [
                record["set"],
                record["method"],
                str(record["M"]),
                str(int(record["rank"])),
                f"{record['error']:.2g}",
                f"{record['largest error']:.2g}",
                f"{record['ratio']:.3g}",
                f"{record['nll']:.4f}",
                f"{record['nll'] - exact['nll']:+.4f}",
                f"{record['far']:.3f}",
                f"{record['smallest far']:.3f}",
                f"{record['seconds']:.2f}",
                str(int(record["steps"])) if record["steps"] else "–",
            ]
        )
    header = ["set", "method", "points", "features", "error", "largest", "ratio", "NLL", "- exact"]
    return table.markdown_table([*header, "far", "smallest", "s", "steps"], rows)


def settings(records: Sequence[Record]) -> list[str]:
    """One line for each set: sizes, what was tuned, the exact posterior's scores."""
    lines = []
    for alone in (r for r in records if r["method"] == MAP):
        (exact,) = of(records, alone["set"], EXACT)
        noise = "" if alone["noise"] != alone["noise"] else f", noise {alone['noise']:.3g}"
        layers = "-".join(map(str, alone["layers"]))
        lines.append(
            f"- {alone['set']}: N = {alone['rows']}, {alone['test rows']} test rows, layers "
            f"{layers} ({alone['weights']} weights), prior precision {alone['precision']:.3g}"
            f"{noise}; NLL {alone['nll']:.4f} (MAP), {exact['nll']:.4f} (exact); the exact "
            f"posterior takes {exact['seconds']:.2f} s"
        )
    return lines


def against_peers(records: Sequence[Record]) -> str:
    """Errors of our best method and the best peer; nothing if one of them isn't there."""
    ours = [r for r in records if r["method"].startswith(OURS)]
    others = [r for r in records if not r["method"].startswith(OURS)]
    if not ours or not others:
        return ""
    mine, peer = (min(group, key=lambda r: r["error"]) for group in (ours, others))
    return (
        f"error {mine['error']:.2g} ({mine['method']}) against {peer['error']:.2g} "
        f"({peer['method']}): **{peer['error'] / mine['error']:.2g}×**"
    )


def verdicts(records: Sequence[Record]) -> list[str]:
    """The best of ours against the best peer, at equal numbers of points and of features."""
    medians, lines = over_seeds(records), []
    for name in dict.fromkeys(record["set"] for record in medians):
        here = [record for record in medians if record["set"] == name]
        counts = {"M": "points", "rank": "features"}
        if all(record["M"] == record["rank"] for record in here):
            del counts["rank"]
        for count, what in counts.items():
            for size in sorted({int(record[count]) for record in here}):
                line = against_peers([r for r in here if r[count] == size])
                if line:
                    lines.append(f"- {name}, {size} {what}: {line}")
        for whose, chosen in (
            (OURS, [r for r in here if r["method"].startswith(OURS)]),
            ("ELLA", [r for r in here if r["method"].startswith("ELLA")]),
            ("VaLLA", [r for r in here if r["method"].startswith("VaLLA")]),
        ):
            if chosen:
                low, high = (f(r["far"] for r in chosen) for f in (min, max))
                lines.append(
                    f"- {name}, far from the data: {whose}'s variance is {low:.3f} to {high:.3f} "
                    f"of the exact one, at one row {min(r['smallest far'] for r in chosen):.3f}"
                )
    return lines


def plot(records: Sequence[Record], path: Path) -> None:
    """Error, NLL and variance far out against M, features and seconds, a row for each set."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    medians = over_seeds(records)
    names = list(dict.fromkeys(record["set"] for record in medians))
    methods = list(dict.fromkeys(record["method"] for record in medians))
    across = {"M": "inducing points", "rank": "features", "seconds": "seconds (fit, predict)"}
    up = {"error": "relative error of covariances", "nll": "test NLL", "far": "far out / exact"}
    panels = [("M", "error"), ("rank", "error"), ("seconds", "error"), ("M", "nll"), ("M", "far")]
    size = 3.5 * len(panels), 3.3 * len(names) + 0.7
    figure, axes = plt.subplots(len(names), len(panels), figsize=size, squeeze=False)
    for row, name in zip(axes, names, strict=True):
        for axis, (x, y) in zip(row, panels, strict=True):
            for method in methods:
                points = sorted((r[x], r[y]) for r in of(medians, name, method))
                style = "o-" if method.startswith(OURS) else "s--"
                places, heights = [p[0] for p in points], [p[1] for p in points]
                axis.plot(places, heights, style, markersize=4, label=method)
            axis.set_xscale("log", base=10 if x == "seconds" else 2)
            if y == "nll":
                for method, line in ((EXACT, "-"), (MAP, ":")):
                    (reference,) = of(records, name, method)
                    axis.axhline(reference["nll"], color="black", linestyle=line, label=method)
            else:
                axis.set_yscale("log")
            axis.set(xlabel=across[x], ylabel=up[y], title=name)
            axis.grid(alpha=0.3)
    handles, labels = axes[0, 3].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(labels), loc="lower center")
    figure.tight_layout(rect=(0, 0.7 / size[1], 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
