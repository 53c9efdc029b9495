"""Every inference with every likelihood predicts the same, to the last bit, in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import saved_cases
import torch
from saved_cases import FRESH, KINDS, LIKELIHOODS, TABLE, fitted, results_of

import lingp

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What all GPs predict here, and in the process that loaded them."""
    folder = tmp_path_factory.mktemp("saved")
    here = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (key, (name, kind, mean)) in enumerate(TABLE.items()):
            gp = fitted(name, kind, mean)
            here[key] = results_of(gp, name, kind)
            gp.save(folder / f"{number}.lingp", include_data=KINDS[kind][1])
    package = Path(lingp.__file__).parents[1]
    paths = [package, TESTS, TESTS / "saving"]
    threads = str(torch.get_num_threads())  # another number sums in another order
    subprocess.run(
        [sys.executable, saved_cases.__file__, folder],
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": threads,
        },
    )
    return here, torch.load(folder / "results.pt", weights_only=True)


@pytest.mark.parametrize("kind", FRESH)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_predictions_are_the_same_bits_in_a_fresh_process(both, name, kind):
    here, there = (side[f"{name} | {kind}"] for side in both)
    assert here.keys() == there.keys()
    for what, value in here.items():
        torch.testing.assert_close(value, there[what], rtol=0, atol=0, equal_nan=True, msg=what)
