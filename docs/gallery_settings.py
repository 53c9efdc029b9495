"""What happens before and after each example of the gallery runs."""

import warnings

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
