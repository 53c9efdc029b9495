"""The CRISPR-Cas13 sets with stored splits, and a re-run of published methods on them.

`crispr_<name>.npz`: `x` (n x 38, codes 0..3 of the bases A, C, G, T, and 255 for N), `y_mean`,
`immer2023_test_index` and `immer2023_valid_index` (splits x rows).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import datasets
import numpy as np

SETS = ("flow_hek293", "survival_a375", "survival_hek293")
SPLITS = 10
RERUN = "ref_immer2023_rerun_per_seed.csv"
_UNKNOWN = 255

# columns of the re-run: the network alone; a normal with the epistemic variance added; the mixture
# of normals of 1000 draws of the natural parameters
_COLUMNS = {
    "MAP": "test_loglik",
    "posterior predictive": "test_loglik_bayes",
    "mixture of draws": "test_loglik_bayes_mc_lse",
}
_METHODS = {
    ("homoscedastic", "map", "none"): "homoscedastic, grid search",
    ("homoscedastic", "marglik", "none"): "homoscedastic, evidence",
    ("heteroscedastic", "map", "natural"): "natural, grid search",
    ("heteroscedastic", "marglik", "natural"): "natural, evidence",
    ("heteroscedastic", "map", "meanvar"): "mean and variance, grid search",
    ("heteroscedastic", "marglik", "meanvar"): "mean and variance, evidence",
    ("heteroscedastic", "betanll", "gaussian"): "β-NLL",
    ("heteroscedastic", "faithful", "gaussian"): "faithful",
    ("heteroscedastic", "vi", "gaussian"): "variational",
}


def one_hot(x: np.ndarray) -> np.ndarray:
    """Each position in one-hot code without its last category, (n x columns).

    The last category of a position is N where it occurs there, else T.
    """
    columns = []
    for position in x.T:
        last = 4 if (position == _UNKNOWN).any() else 3
        columns.append(position[:, None] == np.arange(last))
    return np.concatenate(columns, axis=1).astype(float)


def split(where: Path, name: str, index: int) -> datasets.Split:
    """One split; everything standardised with the training and validation rows' statistics.

    Test log-likelihoods in the units of the data are those of standardised targets less
    log `target_std`.
    """
    with np.load(where / f"crispr_{name}.npz", allow_pickle=False) as file:
        x, y = one_hot(file["x"]), file["y_mean"].astype(float)
        test, valid = (file[f"immer2023_{part}_index"][index] for part in ("test", "valid"))
    train = np.setdiff1d(np.arange(len(y)), np.concatenate([test, valid]))
    seen = np.concatenate([train, valid])
    spread = x[seen].std(axis=0)
    x = (x - x[seen].mean(axis=0)) / np.where(spread > 0, spread, 1)
    mean, std = float(y[seen].mean()), float(y[seen].std())
    y = (y - mean) / std
    parts = [datasets.Rows(x[rows], y[rows]) for rows in (train, valid, test)]
    return datasets.Split(*parts, target_mean=mean, target_std=std)


def rerun(where: Path, name: str) -> dict[str, dict[int, float]]:
    """Test log-likelihoods of the re-run, in the units of the data, by method and split.

    The re-run's seed s has split s - 1. Rows of methods not listed here, of seeds without a stored
    split and without a number are left out.
    """
    found: dict[str, dict[int, float]] = defaultdict(dict)
    file = where / RERUN
    if not file.exists():
        return {}
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            method = _METHODS.get((row["likelihood"], row["method"], row["head"]))
            seed = int(row["seed"])
            if row["dataset"] != f"crispr_{name}" or method is None or seed > SPLITS:
                continue
            method += f" {row['beta']}" if row["beta"] else ""
            for label, column in _COLUMNS.items():
                if row[column]:
                    found[f"{method}: {label}"][seed - 1] = float(row[column])
    return dict(found)
