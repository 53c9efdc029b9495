"""Every likelihood trains: the evidence rises."""

import pytest
import torch
from likelihood_cases import CASES, LikelihoodCase
from small_sets import mlp
from torch import nn

from lingp.training import train_with_evidence


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_short_training_raises_the_evidence(case: LikelihoodCase):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(20, 2, generator=g, dtype=torch.float64)
    y = case.targets(g, 20)
    net = nn.Sequential(mlp(2, 4, case.num_outputs), nn.Unflatten(1, case.output_shape or (1,)))
    likelihood = case.make()
    found = train_with_evidence(
        net,
        X,
        y,
        likelihood=likelihood,
        mean="network",
        steps=30,
        updates=3,
        learning_rate=0.02,
        progress=False,
    )
    history = found.history
    assert found.stopped is None
    assert [step.step for step in history] == [10, 20, 30]
    for step in history:
        # but for the tolerance of a search that stops early
        assert step.evidence >= step.evidence_before - 1e-9 * abs(step.evidence_before)
    assert history[-1].evidence > history[0].evidence_before
    assert history[-1].evidence == pytest.approx(found.gp.evidence().value, rel=1e-9)
    assert 0 < history[-1].effective_parameters <= min(20 * case.num_outputs, 17 * 8)
    fixed = {f"likelihood.{n.replace('raw_', '')}" for n, p in likelihood.named_parameters()}
    assert fixed <= set(history[-1].hyperparameters)
