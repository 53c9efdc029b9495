"""A fitted GP survives copies and pickles: estimators, joblib and worker processes make them."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from saved_cases import KINDS, LABELS, Y, make_gp, results, same, through_file

from lingp.likelihoods import Bernoulli, CorrelatedGaussian, Tempered
from lingp.priors import UnitWise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda gp: pickle.loads(pickle.dumps(gp))])
def test_copies_and_pickles(kind, copied, tmp_path):
    inference, include_data = KINDS[kind]
    gp = make_gp(
        Tempered(CorrelatedGaussian([[0.3, 0.1], [0.1, 0.2]]), 2.0),
        2,
        torch.cat([Y, Y.square()], 1),
        inference=inference,
        mean="refit",
        prior=UnitWise(),
    )
    here = results(gp)
    assert same(here, results(copied(gp)))
    assert same(here, results(copied(through_file(gp, tmp_path, include_data))))
    twin = copied(gp)
    twin.likelihood.temperature = 3.0  # and the twin is one of its own
    assert not same(here, results(twin))
    assert same(here, results(gp))


def test_buffers_are_files_too():
    # joblib and others pickle through such objects
    buffer = io.BytesIO()
    gp = make_gp(Bernoulli(), 1, (LABELS > 0).unsqueeze(1))
    torch.save(gp, buffer)
    buffer.seek(0)
    assert same(results(gp), results(torch.load(buffer, weights_only=False)))
