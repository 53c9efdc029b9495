"""Data sets with stored splits, read from a folder of `.npz` files.

The folder is the flag ``--data``, else the variable ``LINGP_DATA``, else ``shared/data`` beside the
repository. Files and keys: ``cls_<name>.npz`` with ``X``, ``y``, ``immer2021_test_index`` and
``immer2021_valid_index`` (splits x rows); ``uci_<name>.npz`` with ``X``, ``y`` and ``test_index``
(splits x rows) or ``test_mask`` (rows x splits, bits packed along the rows);
``mnist_t10k.npz`` and ``notmnist_t10k.npz`` with ``images`` (n x 28 x 28, bytes) and ``labels``.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DATA_VARIABLE = "LINGP_DATA"
CLASSIFICATION = (
    "banana",
    "australian",
    "breast_cancer",
    "ionosphere",
    "glass",
    "vehicle",
    "waveform",
    "satellite",
    "digits",
)
_DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"


def add_flags(parser: argparse.ArgumentParser, *, splits: str) -> None:
    """The flags of benchmarks that read data: where they are, which sets, which splits."""
    parser.add_argument("--data", metavar="FOLDER", help=f"the data files (or {DATA_VARIABLE})")
    parser.add_argument("--sets", metavar="NAME,...", help="these data sets only")
    parser.add_argument(
        "--splits", metavar="A:B", default=splits, help=f"from split A to before B ({splits})"
    )


def folder(given: str | None) -> Path:
    """The folder of the data files: the flag, else the variable, else beside the repository."""
    found = Path(given or os.environ.get(DATA_VARIABLE) or _DEFAULT).resolve()
    if not found.is_dir():
        raise SystemExit(f"no data in {found}: name the folder by --data or {DATA_VARIABLE}")
    return found


def chosen_sets(known: tuple[str, ...], arguments: argparse.Namespace) -> tuple[str, ...]:
    """The data sets the flags leave."""
    names = tuple(arguments.sets.split(",")) if arguments.sets else known
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"no data set {', '.join(unknown)}; there are: {', '.join(known)}")
    return names


def chosen_splits(arguments: argparse.Namespace) -> range:
    """The splits the flags leave."""
    try:
        start, stop = (int(part) for part in arguments.splits.split(":"))
    except ValueError:
        raise SystemExit(
            f"--splits: expected A:B, for example 0:10, got {arguments.splits}"
        ) from None
    return range(start, stop)


@dataclass(frozen=True)
class Rows:
    """Some rows of a data set: inputs (n x D) and targets (n,)."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Split:
    """Training, validation and test rows; inputs standardised with the training rows' statistics.

    For regression targets are standardised too, and a target in the data's units is
    ``target_mean + target_std * y``. Without stored validation rows, `valid` is empty.
    """

    train: Rows
    valid: Rows
    test: Rows
    num_classes: int = 0
    target_mean: float = 0.0
    target_std: float = 1.0


def _standardised(x: np.ndarray, of: np.ndarray) -> np.ndarray:
    spread = of.std(axis=0)
    return (x - of.mean(axis=0)) / np.where(spread > 0, spread, 1)  # a constant column becomes 0


def classification(where: Path, name: str, index: int) -> Split:
    """One split of a classification data set; training rows are those in neither other part."""
    with np.load(where / f"cls_{name}.npz", allow_pickle=False) as file:
        x, y = file["X"], file["y"]
        test, valid = (file[f"immer2021_{part}_index"][index] for part in ("test", "valid"))
    train = np.setdiff1d(np.arange(len(y)), np.concatenate([test, valid]))
    x = _standardised(x, x[train])
    parts = [Rows(x[rows], y[rows]) for rows in (train, valid, test)]
    return Split(*parts, num_classes=int(y.max()) + 1)


def regression(where: Path, name: str, index: int) -> Split:
    """One standard split of a UCI regression data set, everything standardised."""
    with np.load(where / f"uci_{name}.npz", allow_pickle=False) as file:
        x, y = file["X"], file["y"]
        if "test_index" in file:
            test = file["test_index"][index]
        else:
            test = np.flatnonzero(np.unpackbits(file["test_mask"][:, index])[: len(y)])
    train = np.setdiff1d(np.arange(len(y)), test)
    x = _standardised(x, x[train])
    mean, std = float(y[train].mean()), float(y[train].std())
    y = (y - mean) / std
    nothing = np.arange(0)
    parts = [Rows(x[rows], y[rows]) for rows in (train, nothing, test)]
    return Split(*parts, target_mean=mean, target_std=std)


def images(where: Path, name: str, *sizes: int, seed: int = 0) -> list[Rows]:
    """Disjoint random parts of a set of images, the same ones for the same seed.

    Parameters
    ----------
    where
        The folder.
    name
        "mnist" or "notmnist".
    *sizes
        Of each part.
    seed
        Of the random order.

    Returns
    -------
    list of Rows
        Images (n x 1 x 28 x 28) in float32 between 0 and 1, and labels.
    """
    with np.load(where / f"{name}_t10k.npz", allow_pickle=False) as file:
        pixels, labels = file["images"], file["labels"].astype(np.int64)
    if sum(sizes) > len(labels):
        raise ValueError(f"{name} has {len(labels)} images, {sum(sizes)} were asked for")
    order = np.random.default_rng(seed).permutation(len(labels))
    parts = np.split(order, np.cumsum(sizes))[: len(sizes)]
    return [Rows(pixels[rows, None].astype(np.float32) / 255, labels[rows]) for rows in parts]
