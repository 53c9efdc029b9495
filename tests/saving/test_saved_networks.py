"""Networks of all kinds: inducing points keep what layers of every kind make of their inputs."""

from __future__ import annotations

import pytest
import torch
from cases import CASES

import lingp
from lingp.models import LinearizedGP

NAMES = [
    "mlp flat output",
    "sequence output",
    "dict input",
    "tuple input as one argument",
    "Conv2d groups 2, stride 2",
    "ConvTranspose1d plain",
    "embedding with padding",
    "embedding of bounded norm",
    "bag mean",
    "InstanceNorm2d with statistics",
    "BatchNorm2d",
    "PReLU per channel",
    "attention self",
    "LSTM",
    "tied embedding and output",
    "overlapping parts",
    "weight norm",
    "old spectral norm",
    "pruned",
    "bare parameters",
]


@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_the_same_bits(tmp_path, name):
    case = CASES[name]
    net, x = case.network(torch.float64), case.inputs(4, torch.float64)
    gp = LinearizedGP(net, inference=lingp.Sparse(2), mean="refit")
    outputs = gp.linearized(x)
    y = torch.linspace(-1, 1, outputs.numel(), dtype=torch.float64)
    y = y.reshape(len(outputs), *gp.linearized.output_shape)
    gp.fit(x, y, progress=False).save(tmp_path / "model.lingp")
    other = case.network(torch.float64)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
    back = LinearizedGP.load(tmp_path / "model.lingp", other)
    here, there = gp.predict(x, progress=False), back.predict(x, progress=False)
    assert torch.equal(here.mean, there.mean)
    assert torch.equal(here.variance, there.variance)
