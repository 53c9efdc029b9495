"""The last layer is the last that outputs depend on, in everything that is made of a network."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from trained_networks import make_inputs, make_net, same

from lingp import NTKernel
from lingp.likelihoods import Gaussian
from lingp.models import LinearizedGP
from lingp.priors import Diagonal, Isotropic, Layerwise, UnitWise
from lingp.training import EvidenceTrainer, TrainingPlan

X = make_inputs(10)
Y = X.sin().sum(1)
NAMES = ["head.weight", "head.bias"]
PRIORS = {
    "isotropic": lambda: Isotropic(0.5),
    "layerwise": lambda: Layerwise(0.5),
    "unitwise": lambda: UnitWise(0.5),
    "diagonal": lambda: Diagonal(0.5),
}


class TwoHeads(nn.Module):
    """A head, and one that served training and is used no more, of one parameter tensor."""

    def __init__(self):
        super().__init__()
        self.body = make_net(5)
        self.head = nn.Linear(5, 1).double()
        self.auxiliary = nn.Linear(5, 3, bias=False).double()

    def forward(self, x):
        return self.head(self.body(x).tanh())


@pytest.fixture
def net():
    torch.manual_seed(0)
    return TwoHeads()


def fitted(net, parameters, prior=None):
    gp = LinearizedGP(net, Gaussian(0.1), prior=prior, parameters=parameters)
    return gp.fit(X, Y, progress=False)


@pytest.mark.parametrize("name", PRIORS)
def test_gaussian_processes(net, name):
    gp = fitted(net, "last_layer", PRIORS[name]())
    expected = fitted(net, NAMES, PRIORS[name]())
    assert gp.prior.names == tuple(NAMES)
    assert gp.predict(X).epistemic_variance.min() > 1e-4
    same(gp, expected, X)
    for model in (gp, expected):
        model.optimize_hyperparameters()
    same(gp, expected, X)


@pytest.mark.parametrize("name", PRIORS)
def test_kernels(net, name):
    kernel = NTKernel.from_model(net, "last_layer", PRIORS[name]())
    expected = NTKernel.from_model(net, NAMES, PRIORS[name]())
    torch.testing.assert_close(kernel(X).to_dense(), expected(X).to_dense(), rtol=1e-12, atol=1e-14)
    assert kernel.prior.raw_precision.shape == expected.prior.raw_precision.shape


@pytest.mark.parametrize("name", PRIORS)
def test_training(net, name):
    def trained(parameters):
        plan = TrainingPlan(steps=12, burn_in=4, updates=2)
        trainer = EvidenceTrainer(net, X, Y, prior=PRIORS[name](), parameters=parameters, plan=plan)
        while not trainer.finished:
            trainer.step()
        return trainer.result(select="last", progress=False).gp

    same(trained("last_layer"), trained(NAMES), X)


def test_files(net, tmp_path):
    gp = fitted(net, "last_layer", Layerwise(0.5))
    gp.save(tmp_path / "gp.pt", include_data=True)
    loaded = LinearizedGP.load(tmp_path / "gp.pt", net)
    assert loaded.linearized.parameter_names == NAMES
    assert torch.equal(loaded.predict(X).variance, gp.predict(X).variance)
    same(loaded.add_data(X[:2], Y[:2]), gp.add_data(X[:2], Y[:2]), X)


def test_a_prior_moved_before_follows_with_its_precision(net):
    prior = Layerwise(0.5)
    gp = LinearizedGP(net, Gaussian(0.1), prior=prior, parameters="last_layer")
    prior.precision = 3.0
    prior.raw_precision.requires_grad_(False)
    gp.fit(X, Y, progress=False)
    same(gp, fitted(net, NAMES, Layerwise(3.0)), X)
    assert not prior.raw_precision.requires_grad


def test_a_prior_for_the_other_head_is_refused(net):
    net.auxiliary = nn.Linear(5, 3).double()
    prior = Layerwise({"auxiliary.weight": 1.0, "auxiliary.bias": 2.0})
    with pytest.raises(ValueError, match=r'"last_layer" was taken for auxiliary.weight.*list of'):
        fitted(net, "last_layer", prior)


def test_weights_without_influence_are_refused(net):
    with pytest.raises(ValueError, match=r"don't depend on auxiliary.weight at all.*head.bias"):
        fitted(net, "auxiliary.*")
    with pytest.raises(ValueError, match=r"don't depend on auxiliary.weight at all"):
        NTKernel.from_model(net, "auxiliary.*")(X).to_dense()
