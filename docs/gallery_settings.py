"""The order of the gallery's examples, and what happens before and after each runs."""

import warnings
from pathlib import Path

import torch

import lingp  # noqa: F401  what importing it warns of is not the examples' business


def reset(gallery_conf, filename, when):
    """Run on one thread, and let an example that warns fail the build."""
    torch.set_num_threads(1)  # matrices are small
    if when == "before":
        reset.filters = warnings.filters[:]
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)
    else:
        warnings.filters[:] = reset.filters


class ReadingOrder:
    """From the simple to the special; what isn't named comes last, by name."""

    NAMES = (
        "regression",
        "classification",
        "as_sure_as_the_network",
        "noise",
        "coverage",
        "influence",
        "how_it_works",
    )

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, filename):
        name = Path(filename).stem.removeprefix("plot_")
        return (self.NAMES.index(name) if name in self.NAMES else len(self.NAMES), name)
