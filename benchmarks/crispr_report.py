"""What `crispr.py` prints and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scores
from harness import table

NUM_BINS = 10

Record = dict[str, Any]  # scores by row, bins, chosen precisions and seconds
Records = dict[str, dict[int, Record]]  # set, split
Rerun = Mapping[str, Mapping[int, float]]  # method, split


def bins(epistemic: np.ndarray, aleatoric: np.ndarray, off: np.ndarray) -> dict[str, list[float]]:
    """Test rows in ten equal bins by predicted epistemic variance, smallest first.

    Parameters
    ----------
    epistemic, aleatoric
        Predicted variances (n,).
    off
        Targets less the predicted mean (n,).

    Returns
    -------
    dict
        Of each bin: mean predicted epistemic variance, and mean of squared error less aleatoric
        variance, which has the former as its expectation if the prediction is right.
    """
    parts = np.array_split(np.argsort(epistemic), NUM_BINS)
    excess = off**2 - aleatoric
    return {
        "predicted": [float(epistemic[rows].mean()) for rows in parts],
        "found": [float(excess[rows].mean()) for rows in parts],
    }


def report(records: Records, reruns: Mapping[str, Rerun], ours: str, seconds: float) -> str:
    """Tables of log-likelihoods, of calibration and of the choices made."""
    lines = [
        "# CRISPR guide efficacy: test log-likelihood in the units of the data",
        "",
        f"Mean ± standard error over splits; {seconds:.0f} s for all.",
        "",
        _scores(records, "ll"),
        "",
        "Root mean squared error of the predictive mean, in the units of the data:",
        "",
        _scores(records, "rmse"),
        "",
    ]
    for name, found in records.items():
        if found and reruns.get(name):
            lines += [_beside(name, found, reruns[name], ours), ""]
    lines += ["Epistemic variance: predicted, and found as squared error less aleatoric", ""]
    lines += [_calibration(records), "", "Prior precisions and seconds:", "", _choices(records)]
    return "\n".join(lines)


def _rows(records: Records, score: str) -> list[str]:
    names = dict.fromkeys(
        row for found in records.values() for record in found.values() for row in record[score]
    )
    return list(names)


def _scores(records: Records, score: str) -> str:
    header = ["row", *(f"{name} ({len(found)})" for name, found in records.items())]
    body = [
        [
            row,
            *(
                scores.cell([r[score][row] for r in found.values() if row in r[score]])
                for found in records.values()
            ),
        ]
        for row in _rows(records, score)
    ]
    return table.markdown_table(header, body)


def _beside(name: str, found: dict[int, Record], rerun: Rerun, ours: str) -> str:
    """The re-run's rows, and by how much we are ahead on the splits that both have."""
    body, best = [], -np.inf
    winner = ""
    for method, values in rerun.items():
        both = sorted(set(values) & set(found))
        gains = [found[split]["ll"][ours] - values[split] for split in both]
        mean, _ = scores.mean_and_error(list(values.values()))
        if mean > best:
            best, winner = mean, method
        body.append(
            [
                method,
                str(len(values)),
                scores.cell(list(values.values())),
                str(len(both)),
                scores.cell(gains),
            ]
        )
    own = [record["ll"][ours] for record in found.values()]
    verdict = "ahead of" if np.mean(own) > best else "behind"
    header = ["re-run", "splits", "log-likelihood", "common splits", "ours less theirs, paired"]
    return "\n".join(
        [
            f"{name}: {ours} {scores.cell(own)}, {verdict} the best of the re-run, "
            f"{winner} {best:.3f}",
            "",
            table.markdown_table(header, sorted(body, key=lambda row: float(row[2].split()[0]))),
        ]
    )


def calibration(found: dict[int, Record], method: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means over splits of each bin: predicted, found, and the latter's standard error."""
    binned = [record["bins"][method] for record in found.values()]
    predicted, excess = (np.array([b[key] for b in binned]) for key in ("predicted", "found"))
    error = [scores.mean_and_error(list(column))[1] for column in excess.T]
    return predicted.mean(0), excess.mean(0), np.array(error)


def _methods(found: dict[int, Record]) -> list[str]:
    return list(next(iter(found.values()))["bins"]) if found else []


def _calibration(records: Records) -> str:
    header = ["set", "variance", *(f"bin {b + 1}" for b in range(NUM_BINS)), "all"]
    body = []
    for name, found in records.items():
        for method in _methods(found):
            predicted, excess, error = calibration(found, method)
            means = [*predicted, predicted.mean()]
            body.append([name, f"{method}, predicted", *(f"{value:.4f}" for value in means)])
            cells = [f"{value:.4f} ± {e:.4f}" for value, e in zip(excess, error, strict=True)]
            cells.append(f"{excess.mean():.4f}")
            body.append(
                [name, f"{method}, found", *(cell.removesuffix(" ± nan") for cell in cells)]
            )
    return table.markdown_table(header, body)


def _choices(records: Records) -> str:
    kinds = dict.fromkeys(
        kind for found in records.values() for r in found.values() for kind in r["precision"]
    )
    stages = dict.fromkeys(
        stage for found in records.values() for r in found.values() for stage in r["seconds"]
    )

    def median(found: dict[int, Record], key: str, name: str) -> str:
        values: Sequence[float] = [r[key][name] for r in found.values() if name in r[key]]
        return f"{np.median(values):.3g}" if values else "–"

    header = ["set", "", *(f"τ {k}" for k in kinds), *(f"{s} (s)" for s in stages)]
    return table.markdown_table(
        header,
        [
            [
                name,
                "median",
                *(median(found, "precision", k) for k in kinds),
                *(median(found, "seconds", s) for s in stages),
            ]
            for name, found in records.items()
        ],
    )


def plot(records: Records, file: Path) -> None:
    """Found against predicted epistemic variance, one panel per set."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(records), figsize=(4 * len(records), 3.6), squeeze=False, layout="constrained"
    )
    for axes, (name, found) in zip(panels[0], records.items(), strict=True):
        for method in _methods(found):
            predicted, excess, error = calibration(found, method)
            axes.errorbar(
                predicted, excess, np.nan_to_num(error), fmt="o-", capsize=2, label=method
            )
        ends = np.sort(axes.lines[0].get_xdata())[[0, -1]]
        line = np.geomspace(*ends)
        axes.plot(line, line, "k--", linewidth=1, label="as predicted")
        axes.axhline(0, color="0.7", linewidth=0.8)
        axes.set(title=name, xlabel="predicted epistemic variance", xscale="log")
        axes.set_yscale("symlog", linthresh=0.01)
    panels[0][0].set_ylabel("squared error less aleatoric variance")
    panels[0][0].legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
