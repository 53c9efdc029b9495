"""What the evidence says of precisions where the prior is centred at the network's own weights."""

import itertools
import warnings

import gpytorch
import pytest
import torch
from torch import nn

from lingp.inference import MisleadingObjectiveWarning
from lingp.likelihoods import Gaussian
from lingp.models import LinearizedGP
from lingp.priors import Isotropic, Layerwise

F64 = torch.float64


def fitted(likelihood, mean, prior=None, outputs=1):
    """A network that was trained on nothing, and 20 rows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs)).double()
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    y = X[:, :1].sin() if outputs == 1 else (X[:, 0] > 0).long()
    prior = Isotropic(mean="network") if prior is None else prior
    return LinearizedGP(net, likelihood, prior=prior, mean=mean).fit(X, y, progress=False)


@pytest.mark.parametrize(("likelihood", "outputs"), [("gaussian", 1), ("categorical", 2)])
def test_evidence_of_the_networks_mean_rises_with_the_precision_to_the_likelihood(
    likelihood, outputs
):
    gp = fitted(likelihood, "network", outputs=outputs)
    values = []
    for power in range(-2, 11, 2):
        gp.prior.precision = 10.0**power
        values.append(gp.evidence())
    assert all(a.value < b.value for a, b in itertools.pairwise(values))
    at_the_network = gp.laplace.data_term.log_prob(gp.laplace.training.outputs)
    # log det(I + ΦΦᵀ) at precision 1e10 is tr ΦΦᵀ / 1e10
    assert values[-1].value == pytest.approx(at_the_network.item(), rel=1e-7)
    assert values[-1].log_likelihood == values[0].log_likelihood
    with pytest.warns(MisleadingObjectiveWarning, match="centred at the network's weights"):
        gp.optimize_hyperparameters()
    assert gp.prior.precision > 1e4


@pytest.mark.parametrize(("prior", "outputs"), [(Isotropic, 3), (Layerwise, 2)])
def test_labels_have_the_evidence_of_a_refitted_mean(prior, outputs):
    gp = fitted("categorical", "refit", prior(mean="network"), outputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MisleadingObjectiveWarning)
        result = gp.optimize_hyperparameters(num_restarts=0)
    assert (result.mean, result.objective) == ("refit", "evidence")
    best = gp.log_marginal_likelihood().item()
    assert result.value == pytest.approx(best, rel=1e-12)
    found = gp.prior.precision.detach().clone()
    for factor in (0.1, 0.5, 0.9, 1.1, 2.0, 10.0):
        gp.prior.precision = factor * found
        assert gp.log_marginal_likelihood().item() < best


def held():
    prior = Isotropic(mean="network")
    prior.register_prior("on precision", gpytorch.priors.GammaPrior(2.0, 1.0), "precision")
    return prior


@pytest.mark.parametrize(
    ("mean", "prior"),
    [
        ("refit", lambda: Isotropic(mean="network")),
        ("network", held),
        ("network", lambda: Isotropic(mean="network").requires_grad_(False)),
        ("network", lambda: Isotropic(mean=0.0)),
    ],
)
def test_nothing_misleads_where_something_holds_the_precision(mean, prior):
    gp = fitted(Gaussian(0.1), mean, prior())
    with warnings.catch_warnings():
        warnings.simplefilter("error", MisleadingObjectiveWarning)
        gp.optimize_hyperparameters()
    assert gp.prior.precision < 1e4
